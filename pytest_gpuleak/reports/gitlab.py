"""GitLab's code quality report (https://docs.gitlab.com/ci/testing/code_quality/), without notes, found by chance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.fingerprint import digest_of
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.records import TestRecord
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports.rules import UNSHOWN_RULE, rule_id
from pytest_gpuleak.reports.source_places import LAST_RESORT, describe_unshown, findings_of, places_of, root_of
from pytest_gpuleak.reports.terminal.findings import render_line
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.records import RunReport

MAX_ISSUES = 25_000
"""Issues that are listed, failing leaks first. The same limit as for SARIF's readers."""


def encode_report(report: RunReport) -> str:
    """Write a report as code quality JSON. GitLab drops repeated fingerprints, so that they are unique in the list."""
    prefix = root_of(report)
    told = [entry for entry in findings_of(report) if entry[1].failed or entry[1].known]
    told.sort(key=lambda entry: not entry[1].failed)  # stable; the cut drops known leaks first
    issues = []
    met: dict[str, int] = {}
    for record, found in told[:MAX_ISSUES]:
        issue = _issue_safely(record, found, prefix)
        digest = issue["fingerprint"]
        met[digest] = met.get(digest, 0) + 1
        if met[digest] > 1:  # another attempt of the test, or its other card
            issue["fingerprint"] = digest_of(digest, str(met[digest]))
        issues.append(issue)
    return json.dumps(issues, indent=1) + "\n"


def _issue_safely(record: TestRecord | FixtureRecord, found: Finding, prefix: str) -> dict[str, Any]:
    def unshown(why: str) -> dict[str, Any]:
        text = describe_unshown(record, found, why)
        return {
            "description": text,
            "check_name": UNSHOWN_RULE,
            "fingerprint": digest_of(text),
            "severity": "major" if found.failed else "info",
            "location": {"path": LAST_RESORT.file, "lines": {"begin": LAST_RESORT.line}},
        }

    return isolated(lambda: _issue(record, found, prefix), unshown)


def _issue(record: TestRecord | FixtureRecord, found: Finding, prefix: str) -> dict[str, Any]:
    if isinstance(record, TestRecord):
        name = clean_text(record.nodeid, ID_LIMIT)
        whole = record.nodeid
    else:
        name = f"fixture '{clean_text(record.name, ID_LIMIT)}'"
        whole = f"{record.baseid}\0{record.name}"
    place = places_of(found, record, prefix)[0][1]
    known = " (known)" if found.known else ""
    return {
        "description": f"{render_line(found)}; left by {name}{known}",
        "check_name": rule_id(found.kind),
        "fingerprint": digest_of(whole, found.kind, found.device.split(":")[0], found.fingerprint),
        "severity": "major" if found.failed else "info",
        "location": {"path": place.file, "lines": {"begin": place.line}},
    }

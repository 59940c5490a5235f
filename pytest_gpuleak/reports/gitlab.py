"""GitLab's code quality report (https://docs.gitlab.com/ci/testing/code_quality/), without notes, found by chance."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.fingerprint import digest_of
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.records import TestRecord
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports.rules import UNSHOWN_RULE, rule_id
from pytest_gpuleak.reports.source_places import (
    LAST_RESORT,
    Place,
    describe_unshown,
    findings_of,
    name_of,
    places_of,
    root_of,
)
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
        issue = isolated(partial(_issue, prefix, record, found), partial(_unshown, record, found))
        digest = issue["fingerprint"]
        met[digest] = met.get(digest, 0) + 1
        if met[digest] > 1:  # another attempt of the test, or its other card
            issue["fingerprint"] = digest_of(digest, str(met[digest]))
        issues.append(issue)
    return json.dumps(issues, indent=1) + "\n"


def _unshown(record: TestRecord | FixtureRecord, found: Finding, why: str) -> dict[str, Any]:
    text = describe_unshown(record, found, why)
    return _entry(found, text, UNSHOWN_RULE, digest_of(text), LAST_RESORT)


def _issue(prefix: str, record: TestRecord | FixtureRecord, found: Finding) -> dict[str, Any]:
    whole = record.nodeid if isinstance(record, TestRecord) else f"{record.baseid}\0{record.name}"
    known = " (known)" if found.known else ""
    text = f"{render_line(found)}; left by {clean_text(name_of(record), ID_LIMIT)}{known}"
    digest = digest_of(whole, found.kind, found.device.split(":")[0], found.fingerprint)
    return _entry(found, text, rule_id(found.kind), digest, places_of(found, record, prefix)[0][1])


def _entry(found: Finding, text: str, rule: str, digest: str, place: Place) -> dict[str, Any]:
    return {
        "description": text,
        "check_name": rule,
        "fingerprint": digest,
        "severity": "major" if found.failed else "info",
        "location": {"path": place.file, "lines": {"begin": place.line}},
    }

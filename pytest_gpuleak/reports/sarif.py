"""The SARIF 2.1.0 report: findings as results at lines of code, for code scanning and editors.

GitHub refuses a whole file for a result without a line or over 25,000 results. It honours neither ``suppressions`` nor
``baselineState``, so known leaks are notes.
Source: https://docs.github.com/code-security/reference/code-scanning/sarif-files/sarif-support.
"""

from __future__ import annotations

import datetime
import json
import math
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytest_gpuleak.model.codes.table import CODES, page
from pytest_gpuleak.model.findings import BaselineStatus
from pytest_gpuleak.model.fingerprint import digest_of
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.records import TestRecord
from pytest_gpuleak.model.text import clean_text, format_bytes
from pytest_gpuleak.model.version import __version__
from pytest_gpuleak.reports.rules import RULE_INDEX, RULES, STALE_RULE, UNSHOWN_RULE, Rule, rule_id
from pytest_gpuleak.reports.source_places import (
    LAST_RESORT,
    Place,
    Role,
    describe_unshown,
    findings_of,
    place_of_known,
    places_of,
    root_of,
)
from pytest_gpuleak.reports.terminal.findings import render_short
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT, TEXT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.model.findings import BaselineState, Finding, FixtureRecord, Holder, KnownLeak
    from pytest_gpuleak.model.records import RunReport

    Json = dict[str, Any]

MAX_RESULTS = 25_000
"""Results of a run that GitHub accepts. Failing ones are kept first."""

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
BASE = "SRCROOT"
"""Base of the artifacts' uris: the root of the repository."""

TAXONOMY = "gpuleak codes"
"""Name of the taxonomy that the results' codes are from."""

_STEPS_SHOWN = 100
_STATES: dict[BaselineState, str] = {"known": "unchanged", "grown": "updated", "new": "new"}
_ROLES: dict[Role, str] = {
    "edit": "the reference to cut is set here",
    "created": "the memory is created here",
    "held": "who holds it is defined here",
    "test": "the test that leaves it behind",
    "fixture": "the fixture that leaves it behind",
}


def encode_report(report: RunReport) -> str:
    """Write a report as SARIF text, in ASCII. User text is cut and free of control characters."""
    return json.dumps(_log(report), indent=1, allow_nan=False) + "\n"


def _log(report: RunReport) -> Json:
    prefix = root_of(report)
    findings = findings_of(report)
    findings.sort(key=lambda pair: (not pair[1].failed, not pair[1].known))  # stable; the cut drops notes first
    results = [isolated(partial(_result, prefix, *one), partial(_unshown, *one)) for one in findings[:MAX_RESULTS]]
    results += [_stale_result(entry, prefix) for entry in report.stale[: MAX_RESULTS - len(results)]]
    taxa = sorted({taxon["id"] for result in results for taxon in result.get("taxa", ())})
    left_out = len(findings) + len(report.stale) - len(results)
    return {
        "$schema": SCHEMA_URI,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "pytest-gpuleak",
                        "version": __version__,
                        "semanticVersion": __version__,
                        "shortDescription": {"text": "Finds the tests that leave GPU memory or tensors behind."},
                        "rules": [_rule(rule) for rule in RULES],
                    }
                },
                "taxonomies": [_taxonomy(taxa)],
                "invocations": [_invocation(report, left_out)],
                "originalUriBaseIds": {BASE: {"description": {"text": "The root of the repository."}}},
                "columnKind": "unicodeCodePoints",
                "results": results,
                "properties": {"summary": isolated(lambda: _plain_numbers(report.summary), lambda _: {})},
            }
        ],
    }


def _rule(rule: Rule) -> Json:
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": f"{rule.title} {rule.text}"},
        # GitHub shows the Markdown where there is one.
        "help": {"text": _message(rule.help.replace("`", "")), "markdown": _message(rule.help)},
        "defaultConfiguration": {"level": "note" if rule.id == STALE_RULE else "error"},
        "properties": {"tags": ["memory", "gpu", "tests"], "precision": "very-high"},
    }


def _taxonomy(codes: Sequence[str]) -> Json:
    """Describe the codes that results have, with the help of each (SARIF 2.1.0, 3.19.3)."""
    return {
        "name": TAXONOMY,
        "shortDescription": {"text": "Patterns of leaks. `gpuleak explain CODE` prints the page of each."},
        "taxa": [
            {
                "id": code.id,
                "shortDescription": {"text": code.title},
                "help": {"text": _message(page(code)), "markdown": _message(page(code))},
            }
            for code in (CODES[name] for name in codes)
        ],
    }


def _invocation(report: RunReport, left_out: int) -> Json:
    notifications = []
    if report.incomplete is not None:
        why = clean_text(report.incomplete, TEXT_LIMIT)
        notifications.append({"level": "error", "message": {"text": _message(f"The report is incomplete: {why}")}})
    if left_out:
        text = f"{left_out} more results are left out: at most {MAX_RESULTS} are accepted. The JSON report has all."
        notifications.append({"level": "warning", "message": {"text": text}})
    invocation: Json = {"executionSuccessful": report.incomplete is None, "toolExecutionNotifications": notifications}
    ended = _utc(report.created)
    return invocation if ended is None else {**invocation, "endTimeUtc": ended}


def _unshown(record: TestRecord | FixtureRecord, found: Finding, why: str) -> Json:
    text = describe_unshown(record, found, why)
    return {
        "ruleId": UNSHOWN_RULE,
        "level": "error" if found.failed else "note",
        "message": {"text": _message(text)},
        "locations": [_location(LAST_RESORT)],
        "partialFingerprints": {"gpuLeak/v1": digest_of(text)},
    }


def _result(prefix: str, record: TestRecord | FixtureRecord, found: Finding) -> Json:
    name, logical = _named(record)
    (_, first), *others = places = places_of(found, record, prefix)
    snippet = _snippet(found, places)
    location = _location(first)
    location["logicalLocations"] = [logical]
    if snippet:
        location["physicalLocation"]["region"]["snippet"] = {"text": snippet}
    rule = rule_id(found.kind)
    fingerprint = digest_of(rule, name, found.device.split(":")[0], found.fingerprint)
    result: Json = {
        "ruleId": rule,
        **({"ruleIndex": RULE_INDEX[rule]} if rule in RULE_INDEX else {}),
        "level": "error" if found.failed else "note",
        "message": {"text": _message(f"{render_short(found)}{_growth(found)}\nleft by {name}")},
        "locations": [location],
        "partialFingerprints": {"gpuLeak/v1": fingerprint},
        "properties": {
            "device": clean_text(found.device, ID_LIMIT),
            "bytes": _in_64_bits(found.bytes),
            "bytesPerRun": _in_64_bits(found.bytes_per_run),
            "count": _in_64_bits(found.count),
            "fingerprint": clean_text(found.fingerprint, ID_LIMIT),
            "code": clean_text(found.code, ID_LIMIT),
            "worker": clean_text(record.worker, ID_LIMIT),
        },
    }
    if found.process is not None:
        result["properties"]["process"] = {name: _plain(value) for name, value in vars(found.process).items()}
    if found.code in CODES:
        result["taxa"] = [{"id": found.code, "toolComponent": {"name": TAXONOMY, "index": 0}}]
    if others:
        result["relatedLocations"] = [
            {"id": index, "message": {"text": _ROLES[role]}, **_location(place)}
            for index, (role, place) in enumerate(others, start=1)
        ]
    status = found.baseline
    if status is None and found.known:
        status = BaselineStatus("known", "")
    if status is not None:
        result["baselineState"] = _STATES[status.state]
    if status is not None and status.state == "known":
        reason = clean_text(status.text, TEXT_LIMIT) or "the baseline lists it as known"
        result["suppressions"] = [{"kind": "external", "justification": reason}]
    elif record.allowed is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": clean_text(record.allowed, TEXT_LIMIT)}]
    if found.holder is not None and found.holder.path:
        result["graphs"] = [_graph(found.holder)]
    return result


def _growth(found: Finding) -> str:
    if found.baseline is None or found.baseline.state != "grown":
        return ""
    return f"\ngrown since the baseline: {clean_text(found.baseline.text, TEXT_LIMIT)}"


def _stale_result(entry: KnownLeak, prefix: str) -> Json:
    subject = entry.test if entry.fixture is None else f"fixture '{entry.fixture}' of {entry.test or 'a plugin'}"
    held = f", held by {clean_text(entry.holder, TEXT_LIMIT)}" if entry.holder else ""
    name = clean_text(subject, ID_LIMIT)
    what = f"{clean_text(entry.kind, 40)}, {format_bytes(entry.bytes)}"
    text = f"gone: {what} on {clean_text(entry.device, ID_LIMIT)}{held}"
    result: Json = {
        "ruleId": STALE_RULE,
        "ruleIndex": RULE_INDEX[STALE_RULE],
        "level": "note",
        "baselineState": "absent",
        "message": {"text": _message(f"{text}\nThe baseline still lists it for {name}; remove the entry.")},
        "locations": [_location(place_of_known(entry, prefix))],
        "partialFingerprints": {"gpuLeak/v1": digest_of("stale", name, entry.device, entry.fingerprint)},
    }
    if entry.reason:
        result["properties"] = {"reason": clean_text(entry.reason, TEXT_LIMIT)}
    return result


def _named(record: TestRecord | FixtureRecord) -> tuple[str, Json]:
    if isinstance(record, TestRecord):
        name = clean_text(record.nodeid, ID_LIMIT)
        return name, {"fullyQualifiedName": name, "kind": "function"}
    fixture, base = clean_text(record.name, ID_LIMIT), clean_text(record.baseid, ID_LIMIT)
    whole = f"{base}::{fixture}" if base else fixture
    return f"fixture '{fixture}'" + (f" of {base}" if base else ""), {
        "name": fixture,
        "fullyQualifiedName": whole,
        "kind": "function",
    }


def _location(place: Place) -> Json:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(place.file, safe="/", errors="replace"), "uriBaseId": BASE},
            "region": {"startLine": place.line},
        }
    }


def _snippet(found: Finding, places: list[tuple[Role, Place]]) -> str:
    if places[0][0] != "created":
        return ""
    for array in found.tensors:
        if array.created is not None and array.created.line == places[0][1].line:
            return clean_text(array.created.code, TEXT_LIMIT)
    return ""


def _graph(holder: Holder) -> Json:
    steps: Iterator[tuple[str, str]] = ((step.type, step.edge) for step in holder.path[:_STEPS_SHOWN])
    nodes = [{"id": "0", "label": {"text": _message(clean_text(holder.root, TEXT_LIMIT))}}]
    edges = []
    for index, (kind, edge) in enumerate(steps):
        # A step names the type it leads from; the root has its own label.
        if index:
            nodes.append({"id": str(index), "label": {"text": _message(clean_text(kind, TEXT_LIMIT))}})
        edges.append(
            {
                "id": f"e{index}",
                "sourceNodeId": str(index),
                "targetNodeId": str(index + 1),
                "label": {"text": _message(clean_text(edge, TEXT_LIMIT))},
            }
        )
    more = len(holder.path) - len(edges)
    nodes.append({"id": str(len(edges)), "label": {"text": f"{more} more steps" if more else "the memory"}})
    return {"description": {"text": "who holds it, step by step"}, "nodes": nodes, "edges": edges}


def _message(text: str) -> str:
    """Double braces, which mark placeholders, and escape embedded links (SARIF 2.1.0, 3.11.5 and 3.11.6)."""
    return text.replace("{", "{{").replace("}", "}}").replace("](", "\\](")


def _plain(value: str | int | None) -> str | int | None:
    return clean_text(value, ID_LIMIT) if isinstance(value, str) else None if value is None else _in_64_bits(value)


def _in_64_bits(number: int) -> int:
    return max(-(2**63), min(number, 2**63 - 1))


def _utc(created: str) -> str | None:
    try:
        moment = datetime.datetime.fromisoformat(created)
        return moment.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


def _plain_numbers(summary: Json) -> Json:
    return {
        clean_text(name, ID_LIMIT): _in_64_bits(value) if isinstance(value, int) else value
        for name, value in summary.items()
        if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    }

"""The JSON report, and the values that it may hold. Its format is `schema/report-1.schema.json`."""

from __future__ import annotations

import json
import math
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.outcomes import TestRecord
from pytest_gpuleak.model.records import SCHEMA, encode
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.records import RunReport


def encode_report(report: RunReport) -> str:
    """Write a report as JSON text, cleaned and cut. A fault in a record costs what it has spoilt."""
    parts = {
        "schema": encode_line(SCHEMA),
        "created": encode_line(report.created),
        **{name: _mapping_of(getattr(report, name)) for name in ("environment", "policy", "summary")},
        "tests": _lines_of(map(_line_of, report.tests)),
        "fixtures": _lines_of(map(_line_of, report.fixtures)),
        "stale": _lines_of(encode_line(encode(entry)) for entry in report.stale),
        "incomplete": encode_line(report.incomplete),
        "faults": encode_line(list(report.faults)),
    }
    return "{\n" + ",\n".join(f'"{key}": {text}' for key, text in parts.items()) + "\n}\n"


def _mapping_of(values: dict[str, Any]) -> str:
    def salvaged(_: str) -> str:
        return encode_line({name: _named(name, value) for name, value in values.items()})

    return isolated(lambda: encode_line(values), salvaged)


def _named(name: str, value: Any) -> Any:
    """Return a value that can be written, or the error: a test may have replaced torch, whose version it is."""
    return isolated(lambda: (encode_line({name: value}), value)[1], lambda why: f"could not be written ({why})")


def _lines_of(lines: Iterable[str]) -> str:
    return "[\n" + ",\n".join(lines) + "\n]"


def _line_of(record: TestRecord | FixtureRecord) -> str:
    def salvaged(why: str) -> str:

        return encode_line(salvage_record(record, why))

    return isolated(lambda: encode_line(encode(record)), salvaged)


def load_schema() -> dict[str, Any]:
    """Read the report's JSON Schema (2020-12), which ships with the package."""
    file = resources.files("pytest_gpuleak.reports") / "schema" / "report-1.schema.json"
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema


MAX_TEXT = 4096
"""Longest string in a report, in characters. Longer strings are cut."""


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def encode_line(value: Any) -> str:
    """Write a value as one line of JSON in ASCII, its strings cleaned and cut. Raises TypeError for other objects."""
    try:
        text = _ENCODER.encode(value)
    except ValueError:  # a number that is not finite
        text = "\\"
    # Without escapes, short and printable: no string in it needs cleaning, which is the expensive part.
    if len(text) <= MAX_TEXT and "\\" not in text and text.isascii() and text.isprintable():
        return text
    return json.dumps(plain(value), allow_nan=False)


def plain(value: Any) -> Any:
    """Return a value as a report holds it: clean and cut strings, finite numbers, lists and dicts alone."""
    kind = type(value)  # exact types and clean strings first: a report has 100,000 strings
    if kind is str:
        return value if len(value) <= MAX_TEXT and value.isprintable() else clean_text(value, MAX_TEXT)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is dict:
        return {plain(key): plain(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [plain(item) for item in value]
    return clean_text(value, MAX_TEXT) if isinstance(value, str) else value


UNKNOWN = "could not be written"
"""Text in the place of a text that cannot be written."""


def salvage_record(record: TestRecord | FixtureRecord, why: str) -> dict[str, Any]:
    """Return as much as can be written of a test's or fixture's record, as plain values. A spoilt finding names its error."""
    findings = [isolated(partial(_checked, found), _spoilt) for found in record.findings]
    fault = f"its record {UNKNOWN} whole ({why})"
    bare: TestRecord | FixtureRecord
    if isinstance(record, TestRecord):
        bare = TestRecord(*record[:7], faults=(fault,))
    else:
        from pytest_gpuleak.model.findings import FixtureRecord  # a run without a leak has none

        bare = FixtureRecord(record.name, record.scope, record.baseid, ())
    return {**encode(bare), "findings": findings}


def _checked(found: Finding) -> dict[str, Any]:
    from pytest_gpuleak.model.finding_codec import encode_finding

    encoded = encode_finding(found)
    encode_line(encoded)
    return encoded


def _spoilt(why: str) -> dict[str, Any]:
    from pytest_gpuleak.model.finding_codec import encode_finding
    from pytest_gpuleak.model.findings import Finding

    evidence = (f"this finding {UNKNOWN} ({why})",)
    return encode_finding(Finding("unconfirmed", True, UNKNOWN, 0, 0, 0, "00", evidence=evidence))

"""The JSON report: the whole run, for machines. Its format is `schema/report-1.schema.json` beside this file."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.records import SCHEMA, encode_record
from pytest_gpuleak.reports.atomic_write import write_text
from pytest_gpuleak.reports.json.plain import plain
from pytest_gpuleak.reports.json.salvage import salvage_mapping, salvage_record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_gpuleak.model.findings import FixtureRecord, KnownLeak
    from pytest_gpuleak.model.records import RunReport, TestRecord


# ASCII alone: whatever reads the file need not know its encoding.
_ENCODER = json.JSONEncoder(allow_nan=False)


def encode_report(report: RunReport) -> str:
    """Write a report as JSON text.

    Strings are free of control characters and cut at `MAX_TEXT`; a number that is not finite is written as null. What
    cannot be written costs itself alone: a record keeps its other fields, and names the error; see `salvage`.
    """
    parts = {
        "schema": _encode(SCHEMA),
        "created": _encode(report.created),
        **{name: _mapping_of(getattr(report, name)) for name in ("environment", "policy", "summary")},
        **{name: _lines_of(getattr(report, name)) for name in ("tests", "fixtures", "stale")},
        "incomplete": _encode(report.incomplete),
        "faults": _encode(list(report.faults)),
    }
    return "{\n" + ",\n".join(f'"{key}": {text}' for key, text in parts.items()) + "\n}\n"


def _encode(value: object) -> str:
    return _ENCODER.encode(plain(value))


def _mapping_of(values: dict[str, Any]) -> str:
    return isolated(lambda: _encode(values), lambda why: _encode(salvage_mapping(values, why)))


def _lines_of(records: Sequence[TestRecord | FixtureRecord | KnownLeak]) -> str:
    """Write one record a line: with `indent` the encoder is Python's own, and takes three times as long."""
    return "[\n" + ",\n".join(map(_line_of, records)) + "\n]" if records else "[]"


def _line_of(record: TestRecord | FixtureRecord | KnownLeak) -> str:
    return isolated(lambda: _encode(encode_record(record)), lambda _: _encode(salvage_record(record)))


def write(report: RunReport, path: Path) -> None:
    """Write a report to a file, in one step. Raises OSError, as `write_text` does."""
    write_text(encode_report(report), path)


def load_schema() -> dict[str, Any]:
    """Read the report's JSON Schema (2020-12), which ships with the package."""
    file = resources.files("pytest_gpuleak.reports") / "schema" / "report-1.schema.json"
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema

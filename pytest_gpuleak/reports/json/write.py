"""The JSON report. Its format is `schema/report-1.schema.json`."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.records import SCHEMA, encode
from pytest_gpuleak.reports.json.plain import encode_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuleak.model.findings import FixtureRecord
    from pytest_gpuleak.model.records import RunReport, TestRecord


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
        from pytest_gpuleak.reports.json.salvage import salvage_record

        return encode_line(salvage_record(record, why))

    return isolated(lambda: encode_line(encode(record)), salvaged)


def load_schema() -> dict[str, Any]:
    """Read the report's JSON Schema (2020-12), which ships with the package."""
    file = resources.files("pytest_gpuleak.reports") / "schema" / "report-1.schema.json"
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema

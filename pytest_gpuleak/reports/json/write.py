"""The JSON report. Its format is `schema/report-1.schema.json`."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.records import SCHEMA, encode
from pytest_gpuleak.reports.json.plain import encode_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.findings import FixtureRecord, KnownLeak
    from pytest_gpuleak.model.records import RunReport, TestRecord


def encode_report(report: RunReport) -> str:
    """Write a report as JSON text, cleaned and cut. A record names each field of its own that cannot be written."""
    parts = {
        "schema": encode_line(SCHEMA),
        "created": encode_line(report.created),
        **{name: _mapping_of(getattr(report, name)) for name in ("environment", "policy", "summary")},
        **{name: _lines_of(getattr(report, name)) for name in ("tests", "fixtures", "stale")},
        "incomplete": encode_line(report.incomplete),
        "faults": encode_line(list(report.faults)),
    }
    return "{\n" + ",\n".join(f'"{key}": {text}' for key, text in parts.items()) + "\n}\n"


def _mapping_of(values: dict[str, Any]) -> str:
    def salvaged(why: str) -> str:
        from pytest_gpuleak.reports.json.salvage import salvage_mapping

        return encode_line(salvage_mapping(values, why))

    return isolated(lambda: encode_line(values), salvaged)


def _lines_of(records: Sequence[TestRecord | FixtureRecord | KnownLeak]) -> str:
    return "[\n" + ",\n".join(map(_line_of, records)) + "\n]" if records else "[]"


def _line_of(record: TestRecord | FixtureRecord | KnownLeak) -> str:
    def salvaged(_: str) -> str:
        from pytest_gpuleak.reports.json.salvage import salvage_record

        return encode_line(salvage_record(record))

    return isolated(lambda: encode_line(encode(record)), salvaged)


def load_schema() -> dict[str, Any]:
    """Read the report's JSON Schema (2020-12), which ships with the package."""
    file = resources.files("pytest_gpuleak.reports") / "schema" / "report-1.schema.json"
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema

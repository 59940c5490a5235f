"""The JSON report: the whole run, for machines. Its format is `schema/report-1.schema.json` beside this file."""

from __future__ import annotations

import json
import math
from importlib import resources
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.records import SCHEMA, encode
from pytest_gpuleak.reports.text import clean_text
from pytest_gpuleak.reports.writing import write_text

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.records import RunReport

MAX_TEXT = 4096
"""Characters of the longest string in a report; a longer one is cut."""


# ASCII alone: whatever reads the file need not know its encoding.
_ENCODER = json.JSONEncoder(allow_nan=False)


def encode_report(report: RunReport) -> str:
    """Write a report as JSON text.

    Strings are free of control characters and cut at `MAX_TEXT`; a number that is not finite is written as null.
    Raises TypeError where `environment`, `policy` or `summary` hold anything but plain values.
    """
    document = {"schema": SCHEMA, **encode(report)}
    return "{\n" + ",\n".join(f'"{key}": {_lines_of(plain(value))}' for key, value in document.items()) + "\n}\n"


def _lines_of(value: object) -> str:
    """One test a line: with `indent` the encoder is Python's own, and takes three times as long."""
    if type(value) is list and value:
        return "[\n" + ",\n".join(map(_ENCODER.encode, value)) + "\n]"
    return _ENCODER.encode(value)


def write(report: RunReport, path: Path) -> None:
    """Write a report to a file, in one step. Raises OSError, as `write_text` does."""
    write_text(encode_report(report), path)


def load_schema() -> dict[str, Any]:
    """Read the report's JSON Schema (2020-12), which ships with the package."""
    file = resources.files("pytest_gpuleak.reports") / "schema" / "report-1.schema.json"
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema


def plain(value: Any) -> Any:
    """The value as it stands in a report: strings cleaned and cut, no number that is not finite, lists and dicts alone."""
    kind = type(value)  # exact types, and what is clean as it is: a report has a hundred thousand strings
    if kind is str:
        return value if len(value) <= MAX_TEXT and value.isprintable() else clean_text(value, MAX_TEXT)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is dict:
        return {plain(key): plain(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [plain(item) for item in value]
    return clean_text(value, MAX_TEXT) if isinstance(value, str) else value

"""Holds a JSON report to the schema that ships with the package."""

from __future__ import annotations

import functools
from typing import Any

import jsonschema

from pytest_gpuleak.reports.json.write import load_schema


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    """Make the schema's validator once: to check the schema itself takes longer than a report (tests/reports/test_json.py)."""
    return jsonschema.Draft202012Validator(load_schema())


def check_schema(document: Any) -> None:
    """Raise where a report is not as the schema says."""
    validator().validate(document)

"""The line in the place of a finding that a report fails to render."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports.source_places import name_of

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.records import TestRecord

_NAME_LIMIT = 300


def describe_unshown(record: TestRecord | FixtureRecord, finding: Finding, why: str) -> str:
    """Name a finding that cannot be rendered: ``t.py::test_a: growing finding: could not be shown (...)``."""
    name = isolated(lambda: clean_text(name_of(record), _NAME_LIMIT), lambda _: "a test or fixture without a name")
    return f"{name}: {name_unshown(finding, why)}"


def name_unshown(finding: Finding, why: str) -> str:
    """Name such a finding without its test: ``growing finding: could not be shown (...)``."""
    what = isolated(lambda: f"{clean_text(finding.kind, _NAME_LIMIT)} finding", lambda _: "a finding")
    return f"{what}: could not be shown ({why})"

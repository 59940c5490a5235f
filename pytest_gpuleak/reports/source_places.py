"""Where code review, annotations and editors show a finding: below the repository's root, whatever a report names."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from typing import TYPE_CHECKING, Literal

from pytest_gpuleak.model.findings import FixtureRecord
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.records import TestRecord
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuleak.model.findings import Finding, KnownLeak
    from pytest_gpuleak.model.records import RunReport

_NAME_LIMIT = 300
ROOT_KEY = "root"
"""Key of `RunReport.environment`: path from the repository's root to the rootdir (``services/ml``, or empty)."""

MAX_PATH = 1024
"""Longest path that is accepted, in characters."""

MAX_LINE = 2**31 - 1
"""Highest line number. Readers of these formats keep it in 32 bits."""

Role = Literal["edit", "created", "held", "test", "fixture"]

_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of a file: its path below the repository's root, with forward slashes, not escaped; its number from 1."""

    file: str
    line: int


LAST_RESORT = Place("conftest.py", 1)
"""Place of findings outside the repository, where one would override a fixture: GitHub demands a place for each."""


def place_at(file: str | None, line: int | None, prefix: str = "") -> Place | None:
    """Return the place of a file below pytest's rootdir, which lies at `prefix` (see `root_of`) of the repository.

    None for a file outside the repository. A line that is no number from 1 counts as 1.
    """
    if not file or len(file) > MAX_PATH or not file.isprintable():
        return None
    path = file.replace("\\", "/")
    parts = path.split("/")
    # Absolute, on another drive, a pseudo-file such as `<string>`, or outside the root.
    if path.startswith(("/", "~", "<")) or re.match("[A-Za-z]:", path) or ".." in parts or _INSTALLED & set(parts):
        return None
    path = posixpath.normpath(posixpath.join(prefix, path))
    if path == ".":
        return None
    return Place(path, line if isinstance(line, int) and 1 <= line <= MAX_LINE else 1)


def name_of(record: TestRecord | FixtureRecord) -> str:
    """Name a test by its id, a fixture as ``fixture 'model'``."""
    return record.nodeid if isinstance(record, TestRecord) else f"fixture '{record.name}'"


def findings_of(report: RunReport) -> list[tuple[TestRecord | FixtureRecord, Finding]]:
    """Return every finding of a run with its test or fixture: the tests' in order, then the fixtures'."""
    records: list[TestRecord | FixtureRecord] = [*report.tests, *report.fixtures]
    return [(record, found) for record in records for found in record.findings]


def culprits_of(
    entries: list[tuple[TestRecord | FixtureRecord, Finding]], prefix: str = ""
) -> list[list[tuple[TestRecord | FixtureRecord, Finding]]]:
    """Group findings that one edit would remove. Fingerprints alone would merge `app.layer1` and `app.layer2`."""
    culprits: dict[tuple[object, ...], list[tuple[TestRecord | FixtureRecord, Finding]]] = {}
    for record, found in entries:
        root = found.holder.root if found.holder is not None else ""
        key = (found.kind, found.device, found.fingerprint, root, places_of(found, record, prefix)[0][1])
        culprits.setdefault(key, []).append((record, found))
    return list(culprits.values())


def root_of(report: RunReport) -> str:
    """Return the path from the repository's root to pytest's rootdir; empty where equal or unknown."""
    root = report.environment.get(ROOT_KEY)
    place = place_at(root, 1) if isinstance(root, str) else None
    return "" if place is None else place.file


def places_of(finding: Finding, record: TestRecord | FixtureRecord, prefix: str = "") -> list[tuple[Role, Place]]:
    """Return the line to edit, the creating line, the definition of the holder, the test or fixture: at least one."""
    found: list[tuple[Role, Place]] = []
    roles: set[str] = set()
    for role, file, line in _candidates(finding, record):
        place = None if role in roles else place_at(file, line, prefix)
        if place is not None:
            roles.add(role)
            found.append((role, place))
    return found or [("test" if isinstance(record, TestRecord) else "fixture", LAST_RESORT)]


def place_of_known(entry: KnownLeak, prefix: str = "") -> Place:
    """Return the place of a baseline's entry: its test's file."""
    return place_at(entry.test.split("::", 1)[0], 1, prefix) or LAST_RESORT


def _candidates(finding: Finding, record: TestRecord | FixtureRecord) -> Iterator[tuple[Role, str | None, int | None]]:
    if finding.edit is not None:
        yield "edit", finding.edit.file, finding.edit.line
    for origin in (array.created for array in finding.tensors):
        if origin is not None:
            yield "created", origin.file, origin.line
    for part in finding.contributions:
        if part.created is not None:
            yield "created", part.created.file, part.created.line
    for holder in (finding.holder, *(part.holder for part in finding.contributions), *finding.other_holders):
        if holder is not None and holder.file is not None:
            yield "held", holder.file, holder.line
    if isinstance(record, FixtureRecord):
        yield "fixture", record.file, record.line
        yield "fixture", _file_of(record.baseid), 1
    else:
        yield "test", record.file, record.line
        yield "test", _file_of(record.nodeid), 1


def _file_of(nodeid: str) -> str | None:
    file = nodeid.split("::", 1)[0]
    return file if posixpath.splitext(file)[1] else None


def describe_unshown(record: TestRecord | FixtureRecord, finding: Finding, why: str) -> str:
    """Name a finding that cannot be rendered: ``t.py::test_a: growing finding: could not be shown (...)``."""
    name = isolated(lambda: clean_text(name_of(record), _NAME_LIMIT), lambda _: "a test or fixture without a name")
    return f"{name}: {name_unshown(finding, why)}"


def name_unshown(finding: Finding, why: str) -> str:
    """Name such a finding without its test: ``growing finding: could not be shown (...)``."""
    what = isolated(lambda: f"{clean_text(finding.kind, _NAME_LIMIT)} finding", lambda _: "a finding")
    return f"{what}: could not be shown ({why})"

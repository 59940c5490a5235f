"""What has changed between two peaks of a test: rows matched by purpose, line and module, whatever the line's number."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpuleak.model.peak_parts import Peak, PeakPart

UNEXPLAINED = "not explained"
"""The category of the row with what no part of a peak has."""

UNSPLIT = "unsplit"
"""The category of the row with what blocks have beyond what was asked for."""

_CELL = 300
"""Longest cell of a row, in characters."""

_NUMBERS = re.compile(r":\d+")


@dataclasses.dataclass(frozen=True)
class PeakRow:
    """A row of a peak as a file has it: `count` storages of one `form` (``float32 [512, 2048]``).

    `place` is the line that made them (``model.py:14 in forward``), or the line of the forward pass.
    """

    category: str
    bytes: int
    count: int = 0
    form: str = ""
    place: str = ""
    module: str = ""

    @property
    def line(self) -> str:
        """Return the place without its number, which each line added above it moves."""
        return _NUMBERS.sub("", self.place)


@dataclasses.dataclass(frozen=True)
class KnownPeak:
    """A test's peak on one type of device, as a file has it: bytes above what was there before, and their rows."""

    test: str
    device: str
    bytes: int
    parts: tuple[PeakRow, ...] = ()


class RowChange(NamedTuple):
    """A row that differs between two peaks; None: it is not there."""

    old: PeakRow | None
    new: PeakRow | None

    @property
    def grown(self) -> int:
        """Return by how many bytes it has grown."""
        return (self.new.bytes if self.new else 0) - (self.old.bytes if self.old else 0)


class PeakChange(NamedTuple):
    """A test's peak before and now."""

    old: KnownPeak
    new: KnownPeak

    @property
    def grown(self) -> int:
        """Return by how many bytes it has grown."""
        return self.new.bytes - self.old.bytes

    @property
    def rows(self) -> list[RowChange]:
        """Return the rows that differ, those that have grown most first."""
        return compare_rows(self.old.parts, self.new.parts)


def known_peak(nodeid: str, peak: Peak) -> KnownPeak:
    """Return a test's peak as a file has it. Which card of a type a test gets is chance."""
    return KnownPeak(clean_text(nodeid, 4096), peak.device.partition(":")[0], peak.bytes, rows_of(peak))


def rows_of(peak: Peak) -> tuple[PeakRow, ...]:
    """Return the rows of a peak, which add up to it."""
    rows = [_row(part) for part in peak.parts]
    beyond = ((UNSPLIT, peak.unsplit_bytes), (UNEXPLAINED, peak.unexplained_bytes))
    return (*rows, *(PeakRow(category, size) for category, size in beyond if size))


def _row(part: PeakPart) -> PeakRow:
    if part.category == "smaller":
        return PeakRow(part.category, part.bytes, part.count)
    place = part.note
    if not place and part.created is not None:
        place = f"{part.created.file}:{part.created.line} in {part.created.function}"
    form = f"{part.dtype} [{', '.join(map(str, part.shape))}]" if part.dtype else ""
    cells = (clean_text(cell, _CELL).replace("|", "/") for cell in (form, place, part.module))
    return PeakRow(part.category, part.bytes, part.count, *cells)


def compare_rows(old: Iterable[PeakRow], new: Iterable[PeakRow]) -> list[RowChange]:
    """Match rows, the likest first, and return those that differ in bytes, what has grown most first."""
    before, now = list(old), list(new)
    changes: list[RowChange] = []
    for key in _LIKENESS:
        changes += _match(before, now, key)
    changes += [RowChange(row, None) for row in before] + [RowChange(None, row) for row in now]
    return sorted((change for change in changes if change.grown), key=lambda change: -change.grown)


_LIKENESS: tuple[Callable[[PeakRow], tuple[object, ...]], ...] = (
    lambda row: (row.category, row.line, row.module, row.form),
    lambda row: (row.category, row.line, row.module),
    lambda row: (row.category, row.line, row.form),
    lambda row: (row.category, row.line),
    lambda row: (row.category, row.module, row.form),
)
"""What two rows have in common, the likest first: the same line may make another form, or a module have another path."""


def _match(old: list[PeakRow], new: list[PeakRow], key: Callable[[PeakRow], tuple[object, ...]]) -> list[RowChange]:
    """Take the rows that match out of both lists, and return them; of several the largest first."""
    by_key: dict[tuple[object, ...], list[PeakRow]] = defaultdict(list)
    for row in sorted(old, key=attrgetter("bytes")):
        by_key[key(row)].append(row)
    found: list[RowChange] = []
    for row in sorted(new, key=attrgetter("bytes"), reverse=True):
        if by_key[key(row)]:
            found.append(RowChange(by_key[key(row)].pop(), row))
            old.remove(found[-1].old)  # type: ignore[arg-type] # it came from there
            new.remove(row)
    return found


def describe_row_change(change: RowChange) -> str:
    """Write how a row differs: new, gone, more of them, or of another form."""
    old, new = change
    if old is None or new is None:
        row = new or old
        assert row is not None
        return f"{'new' if new else 'gone'}: {_amount(row)}"
    if old.form == new.form:
        return f"{_amount(old)} -> {new.count} x" if old.count != new.count else _amount(new)
    return f"{_amount(old)} -> {_amount(new)}"


def _amount(row: PeakRow) -> str:
    return f"{row.count} x {row.form}" if row.form else f"{row.count} smaller" if row.count else "no tensor has it"


def peaks_by_test(pairs: Iterable[tuple[str, Peak | None]]) -> dict[tuple[str, str], KnownPeak]:
    """Return the peaks that records have, by test and type of device; of several attempts the highest."""
    found: dict[tuple[str, str], KnownPeak] = {}
    for nodeid, peak in pairs:
        if peak is not None:
            known = known_peak(nodeid, peak)
            earlier = found.setdefault((known.test, known.device), known)
            if known.bytes > earlier.bytes:
                found[known.test, known.device] = known
    return found


def changed_peaks(
    old: dict[tuple[str, str], KnownPeak], new: dict[tuple[str, str], KnownPeak], tolerance: float
) -> tuple[list[PeakChange], list[PeakChange]]:
    """Return the tests whose peak has grown by more than a share, and those whose peak has shrunk so, the most first."""
    both = [PeakChange(old[key], peak) for key, peak in new.items() if key in old]
    grown = [change for change in both if change.grown > change.old.bytes * tolerance]
    shrunk = [change for change in both if -change.grown > change.old.bytes * tolerance]
    return sorted(grown, key=attrgetter("grown"), reverse=True), sorted(shrunk, key=attrgetter("grown"))

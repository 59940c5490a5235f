"""The file of peaks, ``gpu-peaks.toml``: what each test took at its peak, with the rows that a growth is told by.

A peak hangs on the version of torch and on the GPU: the file says what it was made with, and is not held against another.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.baseline.toml_file import (
    DEVICE_FIELD,
    SHOWN,
    SIZE_FIELD,
    VERSION,
    Form,
    UnusableBaseline,
    check_document,
    encodable,
    is_filled,
    is_size,
    limit_of,
    load_document,
    read_tables,
    read_tolerance,
    show,
    write_tolerance,
)
from pytest_gpuleak.model.peak_changes import KnownPeak, PeakRow
from pytest_gpuleak.model.text import MIB, clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

DEFAULT_TOLERANCE = 0.02
"""Share of its size by which a peak may grow where the file states none: rounding and a library's choices take less."""

LEAST = MIB
"""Bytes of a peak from which on the file lists it."""

HEADER = """\
# What the tests of this suite take at their peaks. pytest-gpuleak fails a test whose peak has grown by more than the
# tolerance, and says what grew. Written, and written anew where a growth is meant, by
#   pytest --gpu-leak-peaks-baseline=PATH --gpu-leak-update-peaks
# A part is: bytes | used as | storages | made at | module
"""

_SEPARATOR = " | "


class Made(NamedTuple):
    """What peaks were measured with: torch's version, and the model of the GPU, empty without one."""

    torch: str = ""
    gpu: str = ""


NOTHING_MADE = Made()


@dataclasses.dataclass(frozen=True)
class Peaks:
    """The peaks of a file, sorted, each once; `tolerance` is the share by which one may grow and still pass."""

    entries: tuple[KnownPeak, ...] = ()
    made: Made = NOTHING_MADE
    tolerance: float = DEFAULT_TOLERANCE

    def limit(self, entry: KnownPeak) -> int:
        """Return the most bytes with which a test still holds to its peak."""
        return limit_of(entry.bytes, self.tolerance)

    def why_not_compared(self, device: str, made: Made) -> str:
        """Tell why peaks of a type of device are not held against these; empty if they are. One of two torches is unknown."""
        if made.torch != self.made.torch:
            return f"made with torch {self.made.torch or 'unknown'}, this is {made.torch or 'unknown'}"
        if device != "cpu" and made.gpu != self.made.gpu:
            return f"made on {self.made.gpu or 'no GPU'}, this is {made.gpu or 'no GPU'}"
        return ""


class PeaksChange(NamedTuple):
    """What an update of a file has changed: numbers of entries."""

    added: int
    changed: int
    removed: int
    kept: int


Key = tuple[str, str]
"""Identity of an entry: test and type of device."""


def key_of(entry: KnownPeak) -> Key:
    """Return an entry's identity, by which the file is sorted."""
    return entry.test, entry.device


def load_peaks(path: Path) -> Peaks:
    """Read a file of peaks. Raises UnusableBaseline for a file that is none, OSError for one that cannot be read."""
    try:
        return _read(*load_document(path, _FORM))
    except UnusableBaseline as error:
        raise UnusableBaseline(f"{clean_text(str(path), 4 * SHOWN)}: {error}") from None


def parse_peaks(text: str) -> Peaks:
    """Read the text of a file of peaks. Raises UnusableBaseline."""
    return _read(check_document(text, _FORM), text)


def dump_peaks(peaks: Peaks) -> str:
    """Write a file of peaks as TOML, sorted, a part a line, so that a change is a short diff."""
    import tomli_w

    head: dict[str, Any] = {"version": VERSION, "torch": peaks.made.torch, "gpu": peaks.made.gpu}
    if peaks.tolerance != DEFAULT_TOLERANCE:
        head["tolerance"] = write_tolerance(peaks.tolerance)
    parts = [HEADER, tomli_w.dumps({name: encodable(value) for name, value in head.items() if value != ""})]
    for entry in sorted(peaks.entries, key=key_of):
        fields: dict[str, Any] = {"test": entry.test, "device": entry.device, "bytes": entry.bytes}
        fields["parts"] = [encodable(_write_row(row)) for row in entry.parts]
        parts.append(f"[[peak]]\n{tomli_w.dumps({name: encodable(value) for name, value in fields.items()})}")
    return "\n".join(parts)


def update_peaks(
    old: Peaks, measured: Iterable[KnownPeak], seen: Iterable[str], made: Made
) -> tuple[Peaks, PeaksChange]:
    """Return the file after a run that has `seen` tests, and what changed.

    Within the tolerance a peak is left as it is: else a peak that creeps would never fail. A test that was not seen keeps its
    entry, unless the file was made with another torch or GPU.
    """
    before = {key_of(entry): entry for entry in old.entries}
    after = {key_of(entry): entry for entry in measured if entry.bytes >= LEAST}
    again = old.made == made
    ran = set(seen)
    kept = {
        key: entry
        for key, entry in before.items()
        if again and ((key in after and _is_same(entry, after[key], old.tolerance)) or entry.test not in ran)
    }
    entries = {**after, **kept}
    changed = sum(key in before and key not in kept for key in after)
    change = PeaksChange(
        added=len(entries.keys() - before.keys()),
        changed=changed,
        removed=len(before.keys() - entries.keys()),
        kept=len(kept),
    )
    return Peaks(tuple(sorted(entries.values(), key=key_of)), made, old.tolerance), change


def _is_same(old: KnownPeak, new: KnownPeak, tolerance: float) -> bool:
    return abs(new.bytes - old.bytes) <= old.bytes * tolerance


def _write_row(row: PeakRow) -> str:
    storages = f"{row.count} x {row.form}" if row.form else str(row.count)
    return _SEPARATOR.join((str(row.bytes), row.category, storages, row.place, row.module)).rstrip(" |")


def _read_row(text: str) -> PeakRow:
    cells = [*text.split(_SEPARATOR), "", "", "", ""][:5]
    size, category, storages, place, module = (cell.strip() for cell in cells)
    count, _, form = storages.partition(" x ")
    if not (size.isascii() and size.isdigit() and len(size) < 20 and is_size(int(size)) and category):
        raise ValueError(text)
    if count and not (count.isascii() and count.isdigit() and len(count) < 20):
        raise ValueError(text)
    return PeakRow(category, int(size), int(count or 0), form, place, module)


def _read(document: dict[str, Any], text: str) -> Peaks:
    for name in ("torch", "gpu"):
        if not isinstance(document.get(name, ""), str):
            raise UnusableBaseline(f"{name} = {show(document[name])} is not accepted, only a text")
    tolerance = read_tolerance(document, DEFAULT_TOLERANCE)
    known: dict[Key, int] = {}
    entries: list[KnownPeak] = []
    for index, (place, table) in enumerate(read_tables(document, text, _FORM)):
        entry = KnownPeak(table["test"], table["device"], table["bytes"], tuple(map(_read_row, table.get("parts", ()))))
        first = known.setdefault(key_of(entry), index)
        if first != index:
            raise UnusableBaseline(
                f"{place}: the same test as entry {first + 1}; accepted is one entry for each test and device"
            )
        entries.append(entry)
    made = Made(document.get("torch", ""), document.get("gpu", ""))
    return Peaks(tuple(sorted(entries, key=key_of)), made, tolerance)


def _are_parts(value: object) -> bool:
    if type(value) is not list or not all(type(one) is str for one in value):
        return False
    try:
        list(map(_read_row, value))
    except ValueError:
        return False
    return True


_FIELDS: Mapping[str, Any] = {
    "test": (is_filled, "the id of a test"),
    "device": DEVICE_FIELD,
    "bytes": SIZE_FIELD,
    "parts": (_are_parts, "a list of texts 'bytes | used as | storages | made at | module'"),
}
_FORM = Form("peak", ("torch", "gpu", "tolerance"), _FIELDS, ("test", "device", "bytes"))

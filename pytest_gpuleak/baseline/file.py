"""The baseline as a file: TOML that a reviewer reads line by line."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, get_args

from pytest_gpuleak.baseline.toml_file import (
    DEVICE_FIELD,
    SHOWN,
    SIZE_FIELD,
    VERSION,
    Form,
    UnusableBaseline,
    encodable,
    is_filled,
    is_text,
    limit_of,
    load_document,
    read_tables,
    read_tolerance,
    write_tolerance,
)
from pytest_gpuleak.model.findings import FindingKind, KnownLeak
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_TOLERANCE = 0.10
"""Share of its size by which a known leak may grow and still pass, where the file states none."""

HEADER = """\
# The GPU and tensor leaks that this suite is known to have. pytest-gpuleak reports them and lets them pass; a new
# one fails its test, and so does one that has grown by more than the tolerance.
# Write into `reason` why a leak is tolerated. Never add entries by hand: fix a leak, or run the whole suite with
#   pytest --gpu-leak --gpu-leak-baseline=PATH --gpu-leak-update-baseline
# which keeps reasons, adds what is new, takes out what is gone, and says so.
"""


@dataclasses.dataclass(frozen=True)
class Baseline:
    """Known leaks, sorted, each once; `tolerance` is the share of its size by which a leak may grow and still pass."""

    entries: tuple[KnownLeak, ...]
    tolerance: float = DEFAULT_TOLERANCE

    def limit(self, entry: KnownLeak) -> int:
        """Return the most bytes with which a leak still passes as this entry."""
        return limit_of(entry.bytes, self.tolerance)


Key = tuple[str, str, str, str]
"""Identity of an entry: test, fixture (empty for none), fingerprint, device."""


def key_of(entry: KnownLeak) -> Key:
    """Return an entry's identity."""
    return entry.test, entry.fixture or "", entry.fingerprint, entry.device


def sort_key(entry: KnownLeak) -> tuple[str, ...]:
    """Order entries by test, so that a change stands beside what it belongs to."""
    return entry.test, entry.fixture or "", entry.kind, entry.device, entry.holder, entry.fingerprint


def load_baseline(path: Path) -> Baseline:
    """Read a baseline. Raises UnusableBaseline for a file that is none, OSError for one that cannot be read."""
    try:
        return _read(*load_document(path, _FORM))
    except UnusableBaseline as error:
        raise UnusableBaseline(f"{clean_text(str(path), 4 * SHOWN)}: {error}") from None


def dump_baseline(baseline: Baseline) -> str:
    """Write a baseline as TOML, sorted, one field a line, so that a change is a short diff."""
    import tomli_w

    head: dict[str, Any] = {"version": VERSION}
    if baseline.tolerance != DEFAULT_TOLERANCE:
        head["tolerance"] = write_tolerance(baseline.tolerance)
    parts = [HEADER, tomli_w.dumps(head)]
    for entry in sorted(baseline.entries, key=sort_key):
        fields = {name: encodable(value) for name, value in vars(entry).items() if value is not None}
        parts.append(f"[[leak]]\n{tomli_w.dumps(fields)}")
    return "\n".join(parts)


def _read(document: dict[str, Any], text: str) -> Baseline:
    tolerance = read_tolerance(document, DEFAULT_TOLERANCE)
    known: dict[Key, int] = {}
    entries: list[KnownLeak] = []
    for index, (place, table) in enumerate(read_tables(document, text, _FORM)):
        if not table["test"] and "fixture" not in table:
            raise UnusableBaseline(f"{place}: test is empty; only the entry of a fixture may leave it so")
        entry = KnownLeak(**{"fixture": None, **table})
        first = known.setdefault(key_of(entry), index)
        if first != index:
            raise UnusableBaseline(
                f"{place}: the same leak as entry {first + 1}; accepted is one entry for each test, fixture, "
                "fingerprint and device"
            )
        entries.append(entry)
    return Baseline(tuple(sorted(entries, key=sort_key)), tolerance)


def _is_fingerprint(value: object) -> bool:
    return type(value) is str and re.fullmatch("[0-9a-f]{4,64}", value) is not None


KINDS: tuple[str, ...] = tuple(kind for kind in get_args(FindingKind) if kind != "budget")
"""Kinds that a baseline lists. Budgets are left out: the test's own marker limits them."""


def _is_kind(value: object) -> bool:
    return type(value) is str and value in KINDS


_FORM = Form(
    table="leak",
    head=("tolerance",),
    fields={
        "test": (is_text, "the id of a test without its parameters"),
        "fixture": (is_filled, "a fixture's name"),
        "kind": (_is_kind, "one of " + ", ".join(KINDS)),
        "device": DEVICE_FIELD,
        "bytes": SIZE_FIELD,
        "holder": (is_text, "a text"),
        "fingerprint": (_is_fingerprint, "a finding's fingerprint, in lower-case hex digits"),
        "reason": (is_text, "a text"),
    },
    required=("test", "kind", "device", "bytes", "fingerprint"),
)

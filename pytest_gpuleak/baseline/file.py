"""The baseline as a file: TOML that a reviewer reads line by line."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any, get_args

from pytest_gpuleak.model.findings import FindingKind, KnownLeak
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.model.toml_text import parse_toml

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERSION = 1

MAX_FILE = 50 * 1024 * 1024
"""Largest file that is read, in bytes: some 200,000 entries."""

MAX_BYTES = 2**63 - 1
"""Largest size of an entry, in bytes: TOML's integers have 64 bits."""

DEFAULT_TOLERANCE = 0.10
"""Share of its size by which a known leak may grow and still pass, where the file states none."""

HEADER = """\
# The GPU and tensor leaks that this suite is known to have. pytest-gpuleak reports them and lets them pass; a new
# one fails its test, and so does one that has grown by more than the tolerance.
# Write into `reason` why a leak is tolerated. Never add entries by hand: fix a leak, or run the whole suite with
#   pytest --gpu-leak --gpu-leak-baseline=PATH --gpu-leak-update-baseline
# which keeps reasons, adds what is new, takes out what is gone, and says so.
"""

_SHOWN = 60

_TOLERANCE = re.compile(r"(\d{1,4}(?:\.\d{1,6})?)\s*%", re.ASCII)
_LEAK_LINE = re.compile(r"^[ \t]*\[\[[ \t]*leak[ \t]*\]\]", re.MULTILINE)


class UnusableBaseline(ValueError):  # noqa: N818 - a user reads the message, and no name of an exception
    """A file that is no baseline. The message is one line: the file, the entry, what is wrong, what is accepted."""


@dataclasses.dataclass(frozen=True)
class Baseline:
    """Known leaks, sorted, each once; `tolerance` is the share of its size by which a leak may grow and still pass."""

    entries: tuple[KnownLeak, ...]
    tolerance: float = DEFAULT_TOLERANCE

    def limit(self, entry: KnownLeak) -> int:
        """Return the most bytes with which a leak still passes as this entry."""
        # From its text, since 0.1 as a float is not a tenth.
        return int(entry.bytes * (1 + Fraction(repr(self.tolerance))))


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
    shown = clean_text(str(path), 4 * _SHOWN)
    with path.open("rb") as stream:
        data = stream.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise UnusableBaseline(f"{shown}: the baseline is larger than {MAX_FILE // 2**20} MiB, the most that is read")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnusableBaseline(f"{shown}: line {line} is not UTF-8; a baseline is TOML, in UTF-8") from None
    try:
        document = parse_toml(text)
    except (ValueError, RecursionError) as error:
        why = clean_text(str(error) or "it nests too deep", 2 * _SHOWN)
        raise UnusableBaseline(f"{shown}: not TOML: {why}; a baseline is a TOML file") from None
    try:
        return _read(document, text)
    except UnusableBaseline as error:
        raise UnusableBaseline(f"{shown}: {error}") from None


def dump_baseline(baseline: Baseline) -> str:
    """Write a baseline as TOML, sorted, one field a line, so that a change is a short diff."""
    import tomli_w

    head: dict[str, Any] = {"version": VERSION}
    if baseline.tolerance != DEFAULT_TOLERANCE:
        percent = Fraction(repr(baseline.tolerance)) * 100
        head["tolerance"] = f"{float(percent):g}%"
    parts = [HEADER, tomli_w.dumps(head)]
    for entry in sorted(baseline.entries, key=sort_key):
        fields = {name: _encodable(value) for name, value in vars(entry).items() if value is not None}
        parts.append(f"[[leak]]\n{tomli_w.dumps(fields)}")
    return "\n".join(parts)


def _encodable(value: str | int) -> str | int:
    """Escape halves of surrogate pairs, which no TOML file can hold."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def _read(document: dict[str, Any], text: str) -> Baseline:
    if "version" not in document:
        raise UnusableBaseline(f"it states no version; accepted is a file with version = {VERSION}")
    version = document["version"]
    if type(version) is not int or version != VERSION:
        newer = "; a newer pytest-gpuleak has written it" if type(version) is int and version > VERSION else ""
        raise UnusableBaseline(f"version = {_show(version)} is not accepted, only {VERSION}{newer}")
    unknown = sorted(document.keys() - {"version", "tolerance", "leak"})
    if unknown:
        raise UnusableBaseline(f"unknown key {_show(unknown[0])}, accepted are: version, tolerance, leak")
    tolerance = _read_tolerance(document["tolerance"]) if "tolerance" in document else DEFAULT_TOLERANCE
    tables = document.get("leak", [])
    if type(tables) is not list or not all(type(table) is dict for table in tables):
        raise UnusableBaseline("leak is not accepted as it stands, only tables that begin with [[leak]]")
    starts = [text.count("\n", 0, match.start()) + 1 for match in _LEAK_LINE.finditer(text)]
    known: dict[Key, int] = {}
    entries: list[KnownLeak] = []
    for index, table in enumerate(tables):
        place = f"entry {index + 1}"
        if len(starts) == len(tables):
            place += f", line {starts[index]}"
        if type(table.get("test")) is str:
            place += f" ({clean_text(table['test'], _SHOWN)})"
        try:
            entry = _read_entry(table)
        except UnusableBaseline as error:
            raise UnusableBaseline(f"{place}: {error}") from None
        first = known.setdefault(key_of(entry), index)
        if first != index:
            raise UnusableBaseline(
                f"{place}: the same leak as entry {first + 1}; accepted is one entry for each test, fixture, "
                "fingerprint and device"
            )
        entries.append(entry)
    return Baseline(tuple(sorted(entries, key=sort_key)), tolerance)


def _read_tolerance(value: object) -> float:
    match = _TOLERANCE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UnusableBaseline(
            f'tolerance = {_show(value)} is not accepted, only a percentage from "0%" to "9999%", such as "10%"'
        )
    return float(Fraction(match[1]) / 100)


def _read_entry(table: dict[str, Any]) -> KnownLeak:
    for name in table:
        if name not in _FIELDS:
            raise UnusableBaseline(f"unknown key {_show(name)}, accepted are: {', '.join(_FIELDS)}")
    for name in _REQUIRED:
        if name not in table:
            raise UnusableBaseline(f"{name} is missing; an entry has {', '.join(_REQUIRED)}")
    for name, value in table.items():
        accepted, accepts = _FIELDS[name]
        if not accepted(value):
            raise UnusableBaseline(f"{name} = {_show(value)} is not accepted, only {accepts}")
    if not table["test"] and "fixture" not in table:
        raise UnusableBaseline("test is empty; only the entry of a fixture may leave it so")
    return KnownLeak(**{"fixture": None, **table})


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_filled(value: object) -> bool:
    return type(value) is str and bool(value.strip())


def _is_device(value: object) -> bool:
    return _is_filled(value) and ":" not in str(value)


def _is_fingerprint(value: object) -> bool:
    return type(value) is str and re.fullmatch("[0-9a-f]{4,64}", value) is not None


KINDS: tuple[str, ...] = tuple(kind for kind in get_args(FindingKind) if kind != "budget")
"""Kinds that a baseline lists. Budgets are left out: the test's own marker limits them."""


def _is_kind(value: object) -> bool:
    return type(value) is str and value in KINDS


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_BYTES


_FIELDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "test": (_is_text, "the id of a test without its parameters"),
    "fixture": (_is_filled, "a fixture's name"),
    "kind": (_is_kind, "one of " + ", ".join(KINDS)),
    "device": (_is_device, "a type of device without an index, such as 'cuda'"),
    "bytes": (_is_size, f"a whole number of bytes from 0 to {MAX_BYTES}"),
    "holder": (_is_text, "a text"),
    "fingerprint": (_is_fingerprint, "a finding's fingerprint, in lower-case hex digits"),
    "reason": (_is_text, "a text"),
}

_REQUIRED = ("test", "kind", "device", "bytes", "fingerprint")


def _show(value: object) -> str:
    # A list or table may be huge, and an integer so long that Python refuses to write it out.
    if type(value) is int and abs(value) > 2**256:
        return "a huge number"
    if type(value) in (str, int, float, bool):
        return clean_text(repr(value), _SHOWN)
    return f"a {type(value).__name__}"

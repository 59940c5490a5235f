"""What baselines of leaks and of peaks have in common as files: reading, their head, and entries checked field by field."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.model.text import clean_text, parse_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

VERSION = 1

MAX_FILE = 50 * 1024 * 1024
"""Largest file that is read, in bytes: some 200,000 entries."""

MAX_BYTES = 2**63 - 1
"""Largest size of an entry, in bytes: TOML's integers have 64 bits."""

SHOWN = 60
"""Characters of a value that an error shows."""

_TOLERANCE = re.compile(r"(\d{1,4}(?:\.\d{1,6})?)\s*%", re.ASCII)


class UnusableBaseline(ValueError):  # noqa: N818 - a user reads the message, and no name of an exception
    """A file that is no baseline. The message is one line: the file, the entry, what is wrong, what is accepted."""


class Form(NamedTuple):
    """The form of a file: `head` are its keys beside `version`, `table` the name of its entries, `fields` by name what these accept."""

    table: str
    head: tuple[str, ...]
    fields: Mapping[str, tuple[Callable[[object], bool], str]]
    required: tuple[str, ...]


def load_document(path: Path, form: Form) -> tuple[dict[str, Any], str]:
    """Read a file, and return its document and its text, with the head's keys and version checked.

    Raises UnusableBaseline for one that is no such file, OSError for one that cannot be read.
    """
    with path.open("rb") as stream:
        data = stream.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise UnusableBaseline(f"the baseline is larger than {MAX_FILE // 2**20} MiB, the most that is read")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnusableBaseline(f"line {line} is not UTF-8; a baseline is TOML, in UTF-8") from None
    return check_document(text, form), text


def check_document(text: str, form: Form) -> dict[str, Any]:
    """Parse a text, and check the head of its document. Raises UnusableBaseline."""
    try:
        document = parse_toml(text)
    except (ValueError, RecursionError) as error:
        why = clean_text(str(error) or "it nests too deep", 2 * SHOWN)
        raise UnusableBaseline(f"not TOML: {why}; a baseline is a TOML file") from None
    if "version" not in document:
        raise UnusableBaseline(f"it states no version; accepted is a file with version = {VERSION}")
    version = document["version"]
    if type(version) is not int or version != VERSION:
        newer = "; a newer pytest-gpuleak has written it" if type(version) is int and version > VERSION else ""
        raise UnusableBaseline(f"version = {show(version)} is not accepted, only {VERSION}{newer}")
    keys = ("version", *form.head, form.table)
    unknown = sorted(document.keys() - set(keys))
    if unknown:
        raise UnusableBaseline(f"unknown key {show(unknown[0])}, accepted are: {', '.join(keys)}")
    return document


def read_tolerance(document: dict[str, Any], default: float) -> float:
    """Read the share by which an entry may grow. Raises UnusableBaseline for what is no percentage."""
    value = document.get("tolerance", f"{default * 100:g}%")
    match = _TOLERANCE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UnusableBaseline(
            f'tolerance = {show(value)} is not accepted, only a percentage from "0%" to "9999%", such as "10%"'
        )
    return float(Fraction(match[1]) / 100)


def write_tolerance(tolerance: float) -> str:
    """Write a share as the file has it. From its text, since 0.1 as a float is not a tenth."""
    return f"{float(Fraction(repr(tolerance)) * 100):g}%"


def limit_of(size: int, tolerance: float) -> int:
    """Return the most bytes with which an entry of `size` bytes still passes."""
    return int(size * (1 + Fraction(repr(tolerance))))


def read_tables(document: dict[str, Any], text: str, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each entry with its place, once its fields are checked. Raises UnusableBaseline."""
    tables = document.get(form.table, [])
    if type(tables) is not list or not all(type(table) is dict for table in tables):
        raise UnusableBaseline(
            f"{form.table} is not accepted as it stands, only tables that begin with [[{form.table}]]"
        )
    heads = re.compile(rf"^[ \t]*\[\[[ \t]*{form.table}[ \t]*\]\]", re.MULTILINE)
    starts = [text.count("\n", 0, match.start()) + 1 for match in heads.finditer(text)]
    for index, table in enumerate(tables):
        place = f"entry {index + 1}"
        if len(starts) == len(tables):
            place += f", line {starts[index]}"
        if type(table.get("test")) is str:
            place += f" ({clean_text(table['test'], SHOWN)})"
        try:
            _check_fields(table, form)
        except UnusableBaseline as error:
            raise UnusableBaseline(f"{place}: {error}") from None
        yield place, table


def _check_fields(table: dict[str, Any], form: Form) -> None:
    for name in table:
        if name not in form.fields:
            raise UnusableBaseline(f"unknown key {show(name)}, accepted are: {', '.join(form.fields)}")
    for name in form.required:
        if name not in table:
            raise UnusableBaseline(f"{name} is missing; an entry has {', '.join(form.required)}")
    for name, value in table.items():
        accepted, accepts = form.fields[name]
        if not accepted(value):
            raise UnusableBaseline(f"{name} = {show(value)} is not accepted, only {accepts}")


def encodable(value: Any) -> Any:
    """Escape halves of surrogate pairs, which no TOML file can hold."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def is_text(value: object) -> bool:
    """Accept a text."""
    return type(value) is str


def is_filled(value: object) -> bool:
    """Accept a text that is not empty."""
    return type(value) is str and bool(value.strip())


def is_device(value: object) -> bool:
    """Accept a type of device."""
    return is_filled(value) and ":" not in str(value)


def is_size(value: object) -> bool:
    """Accept a number of bytes."""
    return type(value) is int and 0 <= value <= MAX_BYTES


DEVICE_FIELD = (is_device, "a type of device without an index, such as 'cuda'")
SIZE_FIELD = (is_size, f"a whole number of bytes from 0 to {MAX_BYTES}")


def show(value: object) -> str:
    """Write a value for an error. A list may be huge, and an integer so long that Python refuses to write it out."""
    if type(value) is int and abs(value) > 2**256:
        return "a huge number"
    if type(value) in (str, int, float, bool):
        return clean_text(repr(value), SHOWN)
    return f"a {type(value).__name__}"

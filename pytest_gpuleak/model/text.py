"""Text: made safe to print, without control characters, whatever the user's names are; and read as sizes, numbers and TOML."""

from __future__ import annotations

import re
import sys
import textwrap
from typing import Any

_CUT = "..."
_ABSURD = 2**100


def clean_text(text: str, limit: int) -> str:
    r"""Make text fit for one line of a log, JUnit or JSON, cut to `limit` characters.

    What is not printable is escaped as in Python (``\n``, ``\x1b``, ``\u202e``), so that no text moves the cursor,
    changes colours or the direction of writing.
    """
    # Call str's own methods, since a subclass may override them. Cut first, to bound the work.
    head = str.__getitem__(text, slice(limit + 1))
    if not head.isprintable():
        head = "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
            for character in head
        )
    return head if len(head) <= limit else head[: max(0, limit - len(_CUT))] + _CUT


def shorten_middle(text: str, limit: int) -> str:
    """Cut text wider than `limit` columns in its middle: the ends of a chain or path tell the most."""
    if width_of(text) <= limit:
        return text
    kept = max(2, limit - len(_CUT) - 2)
    tail = kept // 2
    return f"{_beginning(text, kept - tail)} {_CUT} {_beginning(text[::-1], tail)[::-1]}"


def shorten_end(text: str, limit: int) -> str:
    """Cut text wider than `limit` columns at its end: a line of code is known by its beginning."""
    return text if width_of(text) <= limit else _beginning(text, limit - len(_CUT)) + _CUT


def width_of(text: str) -> int:
    """Return the columns that text takes on a terminal: wide characters (CJK, emoji) take two, combining ones none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def wrap_text(text: str, width: int, *, indent: str = "", further: str = "") -> list[str]:
    """Wrap text at spaces to lines of at most `width` columns: the first with `indent`, others with `further`.

    No line begins with ``::``, which GitHub's runner takes for a command also behind blanks (actions/runner, ActionCommand.cs).
    """
    lines = _wrap(text, width, indent, further)
    return [line.replace("::", ":", 1) if line.lstrip().startswith("::") else line for line in lines]


def _wrap(text: str, width: int, indent: str, further: str) -> list[str]:
    if text.isascii():
        return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False)
    lines: list[str] = []
    line = indent
    empty = True
    for word in text.split():
        rest = word
        while rest:
            room = width - width_of(line) - (not empty)
            if width_of(rest) <= room or (empty and room < 2):
                part = rest
            elif empty:
                part = _beginning(rest, room) or rest[0]
            else:
                part = ""
            if part:
                line += part if empty else f" {part}"
                empty = False
                rest = rest[len(part) :]
            if rest:
                lines.append(line)
                line, empty = further, True
    return lines if empty else [*lines, line]


def _columns(character: str) -> int:
    import unicodedata

    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _beginning(text: str, columns: int) -> str:
    if text.isascii():
        return text[:columns]
    used = 0
    for position, character in enumerate(text):
        used += _columns(character)
        if used > columns:
            return text[:position]
    return text


def format_bytes(size: int) -> str:
    """Format a size: ``1 byte``, ``512 bytes``, ``4.0 MiB``, in powers of 1024."""
    if abs(size) >= _ABSURD:  # a float overflows at 400 digits
        return "less than -2**100 bytes" if size < 0 else "over 2**100 bytes"
    if abs(size) < 1024:
        return count_of(size, "byte")
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if abs(value) < 1023.95:  # what would be written as 1024.0 takes the next unit
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def format_signed(size: int) -> str:
    """Format a size with its sign: ``+1.0 MiB``."""
    return f"{'-' if size < 0 else '+'}{format_bytes(abs(size))}"


def count_of(number: int, noun: str) -> str:
    """Format a count: ``1 tensor``, ``2 tensors``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


MIB = 1024 * 1024
"""Bytes of one MiB, the unit of a size given as a plain number."""

# GPU tools and this plugin's `-mb` options say MB and mean powers of 1024, so "MB" does too.
_UNITS: dict[str, int] = {
    "b": 1,
    **{prefix + end: 1024**power for power, prefix in enumerate("kmgt", 1) for end in ("ib", "b")},
}

_SIZE = re.compile(r"([\d.]+)\s*([a-z]+)", re.ASCII | re.IGNORECASE)

_NUMBER = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)


def parse_size(value: object) -> int:
    """Read a size in bytes: a number of MiB, or text such as `"512KiB"` (or KB). Raises ValueError for any other."""
    unit = MIB
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        if match[2].lower() not in _UNITS:
            raise ValueError("not a unit")
        value, unit = match[1], _UNITS[match[2].lower()]
    return round(parse_number(value) * unit)


def parse_number(value: object) -> float:
    """Read a number from 0, or its text. Raises ValueError for anything else, NaN and infinity included."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    # NaN fails the comparison too.
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**63:
        return float(value)
    raise ValueError("not a number from 0")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a document; what is wrong with it raises `ValueError`."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    document: dict[str, Any] = tomllib.loads(text)
    return document

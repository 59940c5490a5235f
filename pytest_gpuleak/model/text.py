"""Text that is safe to print: names, code and ids of the user, without control characters."""

from __future__ import annotations

_CUT = "..."
_ABSURD = 2**100


def clean_text(text: str, limit: int) -> str:
    r"""Make text fit for one line of a log, JUnit or JSON.

    Characters that are not printable are written as Python escapes them (``\n``, ``\x1b``, ``\u202e``), so that no text
    moves the cursor, changes colours or the direction of writing. Text longer than `limit` characters is cut and ends
    in ``...``.
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
    """Cut text longer than `limit` characters in its middle: the ends of a chain or path tell the most."""
    if len(text) <= limit:
        return text
    kept = max(2, limit - len(_CUT) - 2)
    tail = kept // 2
    return f"{text[: kept - tail]} {_CUT} {text[len(text) - tail :]}"


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

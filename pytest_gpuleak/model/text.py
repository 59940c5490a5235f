"""Text that is safe to print: what a user's names, code and ids say, without what they could do to a terminal."""

from __future__ import annotations

_CUT = "..."
_ABSURD = 2**100


def clean_text(text: str, limit: int) -> str:
    r"""Make text fit for one line of a log, JUnit or JSON.

    Everything that is not printable is shown as Python escapes it (``\n``, ``\x1b``, ``\u202e``), so nothing moves the
    cursor, changes a colour or the direction of writing, or cannot be encoded. What is longer than `limit` characters
    is cut and ends in ``...``.
    """
    # Through str's own methods: a subclass may bring others. Cut first, so that the work is bounded.
    head = str.__getitem__(text, slice(limit + 1))
    if not head.isprintable():
        head = "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
            for character in head
        )
    return head if len(head) <= limit else head[: max(0, limit - len(_CUT))] + _CUT


def shorten_middle(text: str, limit: int) -> str:
    """Cut text longer than `limit` characters in its middle: both ends of a chain or a path say more than that."""
    if len(text) <= limit:
        return text
    kept = max(2, limit - len(_CUT) - 2)
    tail = kept // 2
    return f"{text[: kept - tail]} {_CUT} {text[len(text) - tail :]}"


def format_bytes(size: int) -> str:
    """Write a size for a reader: ``1 byte``, ``512 bytes``, ``4.0 MiB``, in powers of 1024."""
    if abs(size) >= _ABSURD:  # no memory has so many, and a float holds no number of 400 digits
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
    """Write a size with its sign: ``+1.0 MiB``."""
    return f"{'-' if size < 0 else '+'}{format_bytes(abs(size))}"


def count_of(number: int, noun: str) -> str:
    """Write a number of things: ``1 tensor``, ``2 tensors``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

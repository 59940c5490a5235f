"""Lines of the terminal: plain strings, whose class tells what they show, for a terminal's colours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar

from pytest_gpuleak.model.text import clean_text, shorten_middle, width_of, wrap_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_T = TypeVar("_T")

ID_LIMIT = 300
"""Longest test id or file name, in characters."""

TEXT_LIMIT = 500
"""Longest chain, source line, reason or hint, in characters."""

MIN_WIDTH = 60
"""Smallest width that lines are cut to, in columns, however narrow the terminal is."""

INDENT = "  "

LABEL_INDENT: Final = " " * 11
"""Begins a line that continues a labelled one."""


class TitleLine(str):
    """The title of an entry."""

    __slots__ = ()


class CutLine(str):
    """A line with the reference to cut."""

    __slots__ = ()


class DimLine(str):
    """A detail."""

    __slots__ = ()


class BadLine(str):
    """A line that fails the run, or that says what of it cannot be relied on."""

    __slots__ = ()


MARKUP: Final[dict[type[str], dict[str, bool]]] = {
    TitleLine: {"bold": True},
    CutLine: {"yellow": True},
    DimLine: {"light": True},
    BadLine: {"red": True},
}
"""Markup of pytest's terminal writer by the class of a line. The writer heeds ``NO_COLOR`` and ``--color``."""


_STYLES: Final[dict[type[str], str]] = {
    TitleLine: "font-weight:bold",
    CutLine: "font-weight:bold;background:rgba(255,200,0,.3)",
    DimLine: "opacity:.7",
}


def as_html(lines: Iterable[str]) -> str:
    """Write lines as HTML for a notebook: one ``<pre>`` that fits a light and a dark page."""
    import html

    written = [
        f'<span style="{_STYLES[type(line)]}">{html.escape(line)}</span>'
        if type(line) in _STYLES
        else html.escape(line)
        for line in lines
    ]
    return f"<pre>{chr(10).join(written)}</pre>"


def dimmed(lines: Iterable[str]) -> list[str]:
    """Return lines as details."""
    return [DimLine(line) for line in lines]


def labelled(label: str, text: str) -> str:
    """Write one line with its label; a continuation line has none."""
    return f"{INDENT}{label:<7}  {text}"


def wrapped(label: str, text: str, width: int) -> list[str]:
    """Write cleaned and cut text behind its label, wrapped to the width."""
    lines = wrap_text(clean_text(text, TEXT_LIMIT), width, indent=labelled(label, ""), further=LABEL_INDENT)
    return lines or [labelled(label, "").rstrip()]


_BREAKS: Final = re.compile(r"(?=\.\w|\[|/)|(?<=::)|(?<= )(?!::)")
"""Where a line may end within a name or a path: nothing of what is to be edited is cut.

No line begins with ``::``, which GitHub's runner takes for a command also behind blanks (actions/runner, ActionCommand.cs).
"""


def wrap_name(text: str, width: int, *, indent: str = "", further: str = "") -> list[str]:
    """Wrap a dotted name, a chain of references or a path at its dots, brackets and blanks.

    A part that is longer than a line is cut in its middle.
    """
    lines = [indent]
    for whole in _BREAKS.split(text):
        part = shorten_middle(whole, width - len(further))
        if lines[-1] not in (indent, further) and not fits((lines[-1] + part).rstrip(), width):
            lines[-1] = lines[-1].rstrip()
            lines.append(further)
        lines[-1] += part
    return lines


def first_lines(entries: Sequence[_T], limit: int, write: Callable[[_T], str], more: str) -> list[str]:
    """Write the first entries, a line each, and `more` with the number of the others, where there are any."""
    lines = [write(entry) for entry in entries[:limit]]
    return lines if len(entries) <= limit else [*lines, more.format(len(entries) - limit)]


def fits(text: str, width: int) -> bool:
    """Tell whether a line is no wider than the terminal."""
    return width_of(text) <= width

"""Say on the terminal what takes long, and take it away when it has ended."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.session.rerun.unseen.output import open_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

MIN_WIDTH = 40
"""Columns below which a terminal has no room for a notice."""

_DOWN, _UP = "\r\n", "\r\x1b[K\x1b[A"
_ERASE = "\r\x1b[K"


class Notice:
    """A line on the terminal below pytest's, written by stderr's descriptor, since pytest's streams are muted."""

    def __init__(self, text: str, column: int, width: int) -> None:
        self._text = text.encode("ascii", "backslashreplace").decode("ascii")
        self._column = column
        self._width = width
        self._stderr = open_stderr()
        self._shown = False

    def show(self, seconds: float) -> None:
        """Write the line, with the seconds so far, or write it again."""
        start = _DOWN if self._column and not self._shown else _ERASE
        took = f": {seconds:.0f} s"
        self._shown = True
        self._write(start + clean_text(self._text, self._width - len(took) - 1) + took)

    def end(self) -> None:
        """Take the line away, and put the cursor back to where it was."""
        if self._shown:
            self._write(f"{_UP}\x1b[{self._column + 1}G" if self._column else _ERASE)
        self._shown = False
        with contextlib.suppress(OSError):
            os.close(self._stderr)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._stderr, text.encode("ascii"))


@contextlib.contextmanager
def notice(config: pytest.Config, text: str) -> Iterator[Notice | None]:
    """Make a notice for what the body does; None where nobody would see it, or where its line could not be erased."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not _on_terminal(reporter):
        yield None
        return
    writer: Any = reporter._tw
    with contextlib.suppress(Exception):  # what pytest has written must stand before the line
        writer.flush()
    made = Notice(f"gpu-leak: {text}", int(writer.width_of_current_line), int(writer.fullwidth))
    try:
        yield made
    finally:
        made.end()


def _on_terminal(reporter: Any) -> bool:
    if sys.platform == "win32" or os.environ.get("TERM", "dumb") == "dumb":
        return False
    try:
        return bool(reporter.isatty) and os.isatty(2) and int(reporter._tw.fullwidth) >= MIN_WIDTH
    except Exception:  # noqa: BLE001 - a stream of the user's, closed or without a terminal
        return False

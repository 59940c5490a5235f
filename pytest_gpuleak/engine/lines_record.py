"""Tell from the suspects so far whether a first re-run is traced for the lines that create arrays."""

from __future__ import annotations

from typing import Final

QUICK_RERUN_S: Final = 0.02
"""Seconds of a re-run that is traced in any case: tracing it costs less than one more re-run."""

_USELESS: Final = 2
"""Notes in a row after which a re-run is traced only once another has shown growth."""


class LinesRecord:
    """Remembers whether the lines of the last suspects were of use.

    Tracing makes each operation of a test dearer, and where nobody reads notes, it is of use for leaks alone. In a suite
    whose suspects are notes, such as one that fills a registry which the next test clears, a leak is run once more.
    """

    def __init__(self) -> None:
        self._useless = 0

    def come_first(self, rerun_s: float) -> bool:
        """Tell whether to trace the first re-run of a suspect, which takes `rerun_s` seconds."""
        return rerun_s <= QUICK_RERUN_S or self._useless < _USELESS

    def note(self, *, of_use: bool) -> None:
        """Note whether a suspect that was run again is a leak."""
        self._useless = 0 if of_use else self._useless + 1

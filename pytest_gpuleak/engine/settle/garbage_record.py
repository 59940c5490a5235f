"""Tell from the suspects so far whether a collection of the whole heap comes before a re-run."""

from __future__ import annotations

from typing import Final

QUICK_RERUN_S: Final = 0.1
"""Seconds that a collection of the whole heap takes in most suites: a quicker re-run decides first."""

_VAIN: Final = 2
"""Collections in vain after which the re-run comes first."""

_TRY_EVERY: Final = 16
"""Then one suspect of so many is collected all the same, since the next module's tests may leave garbage."""


class GarbageRecord:
    """Remembers whether what the last suspects left was garbage.

    A collection clears tests of Keras, which leave cycles with old objects, in a sixth of a re-run's time; for what a
    Lightning trainer leaves on a wider fixture it is in vain.
    """

    def __init__(self) -> None:
        self._in_vain = 0
        self._freed_by_setup = False

    def comes_first(self, rerun_s: float) -> bool:
        """Tell whether to collect before a re-run that takes `rerun_s` seconds; each call is one suspect."""
        setup_decides, self._freed_by_setup = self._freed_by_setup, False
        if rerun_s <= QUICK_RERUN_S or setup_decides:
            return False
        if self._in_vain < _VAIN:
            return True
        self._in_vain += 1
        return self._in_vain % _TRY_EVERY == 0

    def note_freed_by_setup(self) -> None:
        """Note that a re-run's setup freed all that a suspect left: so may the next one's, before its call."""
        self._freed_by_setup = True

    def note(self, *, freed: bool) -> None:
        """Note whether a collection has freed all that a suspect left."""
        if freed:
            self._in_vain = 0
        elif self._in_vain < _VAIN:
            self._in_vain += 1

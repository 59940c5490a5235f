"""Tell from the suspects so far whether a collection of the whole heap comes before a re-run."""

from __future__ import annotations

from typing import Final

from pytest_gpuleak.engine.settle.attempts import Attempts

QUICK_RERUN_S: Final = 0.1
"""Seconds that a collection of the whole heap takes in most suites: a quicker re-run decides first."""

_VAIN: Final = 2
"""Collections in vain after which the re-run comes first."""

_OF_SETUP: Final = 4
"""Suspects whose collection waits for their re-run's setup, after one whose setup freed all: theirs may do the same."""


class GarbageRecord:
    """Remembers whether what the last suspects left was garbage.

    A collection clears tests of Keras, which leave cycles with old objects, in a sixth of a re-run's time; for what a
    Lightning trainer leaves on a wider fixture it is in vain.
    """

    def __init__(self) -> None:
        self._attempts = Attempts(_VAIN)
        self._left_to_setup = 0

    def waits_for_setup(self, rerun_s: float) -> bool:
        """Tell whether a collection waits until a re-run of `rerun_s` seconds is set up; each call is one suspect."""
        left, self._left_to_setup = self._left_to_setup, max(self._left_to_setup - 1, 0)
        return left > 0 and rerun_s > QUICK_RERUN_S

    def comes_first(self, rerun_s: float) -> bool:
        """Tell whether to collect before a re-run that takes `rerun_s` seconds; each call is one suspect."""
        return rerun_s > QUICK_RERUN_S and self._attempts.is_due()

    def note_freed_by_setup(self) -> None:
        """Note that a re-run's setup freed all that a suspect left: so may the next ones', before their call."""
        self._left_to_setup = _OF_SETUP

    def note(self, *, freed: bool) -> None:
        """Note whether a collection has freed all that a suspect left."""
        self._attempts.note(useful=freed)

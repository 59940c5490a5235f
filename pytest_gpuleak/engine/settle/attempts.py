"""Tell whether to try again what was in vain."""

from __future__ import annotations

from typing import Final

TRY_EVERY: Final = 16
"""Beyond the attempts in vain, one of so many is made all the same: the next module's tests may be others."""

MOST_TRY_EVERY: Final = 64
"""The same after some more in vain."""


class Backoff:
    """Makes one of `first` tries, and then one of twice as many each time, up to one of `most`."""

    def __init__(self, first: int, most: int) -> None:
        self._first = self._every = first
        self._most = most
        self._left_out = 0

    def is_due(self) -> bool:
        """Tell whether to try; each call is one occasion."""
        self._left_out += 1
        if self._left_out < self._every:
            return False
        self._left_out, self._every = 0, min(2 * self._every, self._most)
        return True

    def begin_anew(self) -> None:
        """Make one of the first number of tries again."""
        self._left_out, self._every = 0, self._first


class Attempts:
    """Counts attempts in vain: after `most_vain` in a row, few are made."""

    def __init__(self, most_vain: int) -> None:
        self._most_vain = most_vain
        self._in_vain = 0
        self._rare = Backoff(TRY_EVERY, MOST_TRY_EVERY)

    def is_due(self) -> bool:
        """Tell whether to try; each call is one occasion."""
        return self._in_vain < self._most_vain or self._rare.is_due()

    def note(self, *, useful: bool) -> None:
        """Note how an attempt came out."""
        if useful:
            self._in_vain = 0
            self._rare.begin_anew()
        elif self._in_vain < self._most_vain:
            self._in_vain += 1

"""Tell whether to try again what was in vain."""

from __future__ import annotations

from typing import Final

TRY_EVERY: Final = 16
"""Beyond the attempts in vain, one of so many is made all the same: the next module's tests may be others."""


class Attempts:
    """Counts attempts in vain: after `most_vain` in a row, one of `TRY_EVERY` is made."""

    def __init__(self, most_vain: int) -> None:
        self._most_vain = most_vain
        self._in_vain = 0

    def is_due(self) -> bool:
        """Tell whether to try; each call is one occasion."""
        if self._in_vain < self._most_vain:
            return True
        self._in_vain += 1
        return self._in_vain % TRY_EVERY == 0

    def note(self, *, useful: bool) -> None:
        """Note how an attempt came out."""
        if useful:
            self._in_vain = 0
        elif self._in_vain < self._most_vain:
            self._in_vain += 1

"""The protocol of an inspector: a pure function from a finding, read along its holder's path, to a hint or None."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

MAX_HINT_LENGTH: Final = 280
"""Longest hint, in characters, whatever the names in it."""


class Inspector(Protocol):
    """Recognises one way to leak from plain data, and returns None in doubt."""

    def __call__(self, trail: Trail) -> str | None:
        """Return the hint (what holds, why it keeps memory, which edit frees it), or None for any other finding."""

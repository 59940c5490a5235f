"""What an inspector is: a pure function from a finding, read along its holder's path, to a hint or None."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

MAX_HINT_LENGTH: Final = 220
"""Characters of a hint, whatever the names in it."""


class Inspector(Protocol):
    """Recognises one way to leak. It reads plain data alone and stays silent when in doubt."""

    def __call__(self, trail: Trail) -> str | None:
        """The hint: what holds, why that keeps memory, and the edit that frees it; None for any other finding."""

"""Keep CuPy's default random generators out of a re-run.

cuRAND tells no generator's state, so it cannot be restored. The generators are put aside instead: the re-run draws from
new ones, and the next test from the same as without a re-run. Generators of the tests' own draw on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.protocol import Restore

_MODULE: Final = "cupy.random._generator"
_STATES: Final = "_random_states"


def keep_random_states() -> Sequence[Restore]:
    """Put the generators aside, by device; return the function that brings them back."""
    states = safe_access.loaded(_MODULE, _STATES)
    if type(states) is not dict or not states:
        return ()
    kept = dict(states)
    states.clear()

    def restore() -> None:
        now = safe_access.loaded(_MODULE, _STATES)
        if type(now) is dict:  # `reset_states()` makes a new one
            now.clear()
            now.update(kept)

    return (restore,)

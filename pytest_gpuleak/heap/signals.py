"""Keep signals from the plugin's own threads. Short processes load it: it imports nothing."""

from __future__ import annotations

# The module itself, of which a test may replace the functions in `signal`, and which loads no other.
import _signal  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_set_mask = getattr(_signal, "pthread_sigmask", None)  # none on Windows
_FAULTS = frozenset(
    getattr(_signal, name, 0) for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")
)  # a thread's own


def start_without_signals(start: Callable[[], Any]) -> Any:
    """Start a thread that blocks all signals, which it inherits, and return what `start` returns.

    A signal that the program blocks, to take it later, would else reach this thread, and mostly end the process.
    """
    if _set_mask is None:
        return start()
    before = _set_mask(_signal.SIG_BLOCK, set(_signal.valid_signals()) - _FAULTS)
    try:
        return start()
    finally:
        _set_mask(_signal.SIG_SETMASK, before)

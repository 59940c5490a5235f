"""The threads of this process that run Python code."""

from __future__ import annotations

import sys


def running_threads() -> frozenset[int]:
    """Identities of the threads that run Python code now; a lookup, not a thread's object."""
    return frozenset(sys._current_frames())

"""The processes that a run of pytest has started, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time


def end_group(group: int, grace_s: float) -> bool:
    """Wait for a process group to be empty, and kill what is left of it; whether anything was.

    Args:
        group: its id; it may be gone.
        grace_s: seconds to wait.
    """
    ends = time.monotonic() + grace_s
    while True:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return False
        if time.monotonic() >= ends:
            break
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    return True

"""Keep the plugin's own file descriptors out of the way of the tests'."""

from __future__ import annotations

import contextlib
import os

LEAST = 512
"""The lowest number of a moved descriptor: tests have few files open at once, and processes may often have 1,024."""


def out_of_the_way(descriptor: int) -> int:
    """Move a descriptor to a high number, where that can be done, and return it.

    A test that keeps something by a descriptor's number, as selectors do, is given the same number when it is run again.
    """
    with contextlib.suppress(Exception):  # Windows has no such numbers, and a process may be allowed fewer
        import fcntl

        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, LEAST)
        os.close(descriptor)
        return moved
    return descriptor

"""Stands for psutil, which has no build for WebAssembly: one process without children, and no figure of the heap."""

from __future__ import annotations

import os
from typing import NamedTuple


class Error(Exception):
    """As psutil's."""


class NoSuchProcess(Error):  # noqa: N818 - psutil's name
    """As psutil's."""


class AccessDenied(Error):  # noqa: N818 - psutil's name
    """As psutil's."""


class ZombieProcess(NoSuchProcess):
    """As psutil's."""


class _Memory(NamedTuple):
    rss: int
    total: int
    available: int


def virtual_memory() -> _Memory:
    """Return the memory that WebAssembly can address with 32 bits."""
    return _Memory(0, 1 << 32, 1 << 32)


class Process:
    """The only process there is."""

    def __init__(self, pid: int | None = None) -> None:
        if pid not in (None, os.getpid()):
            raise NoSuchProcess(pid)
        self.pid = os.getpid()

    def children(self, *, recursive: bool = False) -> list[Process]:  # noqa: ARG002 - as psutil's
        """Return none."""
        return []

    def memory_info(self) -> _Memory:
        """Return the figures of `virtual_memory`, of which none is measured."""
        return virtual_memory()

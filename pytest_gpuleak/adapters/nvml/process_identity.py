"""Find this process and its descendants among the processes that the NVIDIA driver lists."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.adapters.dependencies import dependency_in_place, import_dependency
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The namespace of the pids that the driver reports (Linux, PROC_PID_INIT_INO in include/linux/proc_ns.h)."""

MAX_NAME = 80


class Identity(NamedTuple):
    """The pids, outermost first, by which the driver may know this process.

    `visible` tells whether a process that the driver does not list holds no memory; `why` says why not.
    """

    pids: tuple[int, ...]
    visible: bool
    why: str = ""


def identify(pid: int, status: str, namespace: str, release: str) -> Identity:
    """Return the driver's identity of `pid`, by ``NSpid`` in ``/proc/self/status`` (proc.rst) and its namespace."""
    pids: tuple[int, ...] = (pid,)
    for line in status.splitlines():
        key, _, rest = line.partition(":")
        if key == "NSpid":
            listed = tuple(int(part) for part in rest.split() if part.isdigit())
            pids = listed if pid in listed else (*listed, pid)
    if "microsoft" in release.lower():
        return Identity(pids, False, "not visible: WSL's driver lists no processes")
    if namespace not in ("", INITIAL_PID_NAMESPACE):
        return Identity(pids, False, "not visible: this process has a pid namespace of its own")
    return Identity(pids, True)


def own_identity() -> Identity:
    """Return how the driver identifies this process. Not cached: a fork has another pid."""
    status = namespace = ""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - half the cost
            status = file.read()
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - as above
    except OSError:
        pass  # not Linux: there are no pid namespaces
    release = os.uname().release if hasattr(os, "uname") else ""
    return identify(os.getpid(), status, namespace, release)


class Family:
    """Looks up, once for each reading, processes' names and whether they descend from the processes `pids`."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._own = frozenset(pids)
        self._known: dict[int, tuple[str | None, bool]] = {}

    def name_of(self, pid: int) -> str | None:
        """Return the program's name; None if it cannot be read."""
        return self._look_up(pid)[0]

    def is_descendant(self, pid: int) -> bool:
        """Return whether this process or a descendant of it started that process."""
        return self._look_up(pid)[1]

    def _look_up(self, pid: int) -> tuple[str | None, bool]:
        if pid not in self._known:
            self._known[pid] = self._ask(pid)
        return self._known[pid]

    def _ask(self, pid: int) -> tuple[str | None, bool]:
        psutil = import_dependency("psutil", required=True)
        with dependency_in_place("psutil"):
            try:
                process = psutil.Process(pid)
                name = clean_text(process.name(), MAX_NAME)
            except (psutil.Error, OSError, ValueError):
                return None, False
            try:
                return name, self._descends(process)
            except (psutil.Error, OSError):
                return name, False

    def _descends(self, process: Any) -> bool:
        # Not `parents()`, which walks up to the first process of all: a child's parent is found at once.
        while (process := process.parent()) is not None:
            if process.pid in self._own:
                return True
        return False

"""Processes that a test has started and that outlive it.

A process is known by its pid and the time of its creation, since pids are used again: that is what two of psutil's
`Process` are compared by. Watching costs a test some microseconds while there is no child: one system call says so.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from psutil import Process

    from pytest_gpuleak.adapters.processes.facts import LeftProcess

CLOCK_SLACK_S = 2.0
"""How far the time of a process's creation may be off the clock's: Linux tells the time of boot in whole seconds."""


class ProcessWatch:
    """Knows whose each child process is.

    Args:
        list_descendants: the pids of the processes that this one has started, directly or not, with their parents',
            parents first; other than the operating system's own list in tests alone.
    """

    def __init__(self, list_descendants: Callable[[], dict[int, int]] | None = None) -> None:
        self._list = list_descendants
        self._known: set[Process] = set()
        self._seen: dict[Process, int] = {}
        self._helpers: set[Process] = set()
        self._setups: list[set[Process]] = []
        self._adopted: dict[Hashable, set[Process]] = {}
        self._looked = False
        self._begun = time.time()
        self._counts_starts: bool | None = None
        self._last_start: int | None = None

    def begin(self) -> None:
        """A test begins: what runs now is not its own."""
        self._begun = time.time()
        if not self._seen and not self._known and self._looked:
            return  # none ran when the last test ended, and no test has begun since
        self._known = set(self._look())
        self._helpers &= self._known

    def suspects(self) -> bool:
        """Whether a process runs that the test has started. Nothing is waited for."""
        self._looked = True
        return bool(self._candidates())

    def left(self) -> list[LeftProcess]:
        """The processes that the test has started and that still run, once those that are going have gone.

        Waits up to `ALL_WAITS_S`, and only where there are any. A process that another one of them has started is among
        its `LeftProcess.descendants`.
        """
        candidates = self._candidates()
        return _describe_left(candidates) if candidates else []

    def enter_setup(self) -> None:
        """A wider fixture's setup begins; they may be nested."""
        self._setups.append(set(self._look()))

    def adopt(self, owner: Hashable = None) -> None:
        """A wider fixture's setup has ended: what it has started is no test's.

        Args:
            owner: what `released` is asked for later.
        """
        before = self._setups.pop() if self._setups else self._known
        new = {process for process in self._candidates() if process not in before}
        self._known |= new
        if new:
            self._adopted.setdefault(owner, set()).update(new)

    def released(self, owner: Hashable) -> list[LeftProcess]:
        """A wider fixture has been finalised: what it has started and that still runs, as `left`."""
        processes = self._adopted.pop(owner, set())
        if not processes:
            return []
        parents = self._look()
        return _describe_left({process: parents[process] for process in processes if process in parents})

    def _look(self) -> dict[Process, int]:
        """All descendants, with their parents' pids."""
        if not has_children():
            self._seen, self._last_start = {}, None
            return self._seen
        # Here, since it imports psutil: most runs start no process.
        from pytest_gpuleak.adapters.processes.facts import find_process, list_descendants

        if self._counts_starts is None:
            self._counts_starts = starts_are_counted()
        last = last_start() if self._counts_starts else None
        if last is None or last != self._last_start:
            # The number was read before the list is made: what is started meanwhile is found by the next look.
            self._last_start = last
            self._seen = {}
            for pid, parent in (self._list or list_descendants)().items():
                process = find_process(pid)
                if process is not None:
                    self._seen[process] = parent
        return self._seen

    def _candidates(self) -> dict[Process, int]:
        """The descendants that the test has started, with their parents' pids; helpers and what others start left out."""
        seen = self._look()
        new = [process for process in seen if process not in self._known]
        if not new:
            return {}
        # As in `_look`.
        from pytest_gpuleak.adapters.processes.facts import command_line, creation_time, still_runs
        from pytest_gpuleak.adapters.processes.kinds import helper_pids, is_fork_server, is_helper

        by_pid = {process.pid: process for process in seen}
        commands = {process.pid: command_line(process.pid) for process in seen}
        servers = {pid for pid, command in commands.items() if is_fork_server(command)}
        # A fork of a server, or of a worker of xdist's, has the command line of what it was forked from.
        servers = {pid for pid in servers if seen[by_pid[pid]] not in servers}
        own, helpers = command_line(os.getpid()), helper_pids()
        mine: dict[Process, int] = {}
        for process in new:  # parents before what they have started, as they were listed
            command, parent = commands[process.pid], by_pid.get(seen[process])
            if (
                process in self._helpers
                or creation_time(process) < self._begun - CLOCK_SLACK_S
                or not still_runs(process)
            ):
                continue
            if parent in self._helpers or process.pid in helpers or (command != own and is_helper(command)):
                self._helpers.add(process)
            elif process.pid not in servers and (parent is None or parent in mine or parent.pid in servers):
                mine[process] = seen[process]
            # Else it is a fork server, or an older process has started it, which knows why.
        return mine


def _describe_left(candidates: dict[Process, int]) -> list[LeftProcess]:
    from pytest_gpuleak.adapters.processes.facts import describe, settle

    left = settle(candidates)
    return describe(left) if left else []


def has_children() -> bool:
    """Whether this process has children, ended ones that nobody has waited for included. Takes a microsecond.

    True where the operating system cannot be asked.
    """
    if not hasattr(os, "waitid"):
        return True  # Windows, and macOS before Python 3.13
    try:
        # WNOWAIT leaves an ended child to whoever waits for it.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def last_start() -> int | None:
    """The number given last to a process or thread of this system; None where it is not told.

    While it stays the same, nothing was started, and the list of processes need not be made again. Linux,
    Documentation/filesystems/proc.rst, "loadavg".
    """
    try:
        descriptor = os.open("/proc/loadavg", os.O_RDONLY)
        try:
            return int(os.read(descriptor, 200).rsplit(None, 1)[1])
        finally:
            os.close(descriptor)
    except (OSError, ValueError, IndexError):
        return None


def starts_are_counted() -> bool:
    """Whether `last_start` can be believed: containers and sandboxes may show a file that is made up, or old."""
    before = last_start()
    if before is None:
        return False
    thread = threading.Thread(target=int)
    thread.start()
    thread.join(timeout=1)
    return last_start() != before

"""Watch for processes that a test has started and that outlive it, identified by pid and creation time."""

from __future__ import annotations

import os
import threading
from functools import cache, partial
from typing import TYPE_CHECKING

from pytest_gpuleak.heap.threads import has_ended, read_kernel_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from psutil import Process

    from pytest_gpuleak.adapters.processes.facts import LeftProcess


class ProcessWatch:
    """Tell which test or fixture (`owner`: its key) each child process belongs to. Only tests replace `list_descendants`."""

    def __init__(self, list_descendants: Callable[[], dict[int, int]] | None = None) -> None:
        self._list = list_descendants
        self._known: set[Process] = set()
        self._seen: dict[Process, int] = {}
        self._starts: dict[int, bytes | None] = {}
        self._helpers: set[Process] = set()
        self._setups: list[set[Process]] = []
        self._adopted: dict[int, set[Process]] = {}
        self._owned: dict[Process, int] | None = None
        self._counts_starts: bool | None = None
        self._last_start: int | None = None
        self._before: tuple[bool, int | None, int | None] | None = None

    def begin(self) -> None:
        """Record the start of a test: processes that run now are not its own."""
        self._known = set(self._look())
        self._helpers &= self._known

    def suspects(self) -> bool:
        """Return whether a process runs that the test has started. Does not wait."""
        return bool(self._candidates())

    def left(self) -> list[LeftProcess]:
        """Return the test's processes that still run after up to `MOST_WAITS` waits, each with its descendants."""
        candidates = self._candidates()
        return _describe_left(candidates) if candidates else []

    def enter_setup(self) -> None:
        """Record the start of a higher-scoped fixture's setup; setups may be nested."""
        self._setups.append(set(self._look()))

    @property
    def in_setup(self) -> bool:
        """Tell whether a higher-scoped fixture is being set up."""
        return bool(self._setups)

    def adopt(self, owner: int) -> None:
        """Record the end of a higher-scoped fixture's setup: its processes belong to `owner`, not to a test."""
        before = self._setups.pop() if self._setups else self._known
        new = {process for process in self._candidates() if process not in before}
        self._known |= new
        if new:
            self._adopted.setdefault(owner, set()).update(new)
            self._owned = None

    def released(self, owner: int) -> list[LeftProcess]:
        """Return the processes that the finalised fixture `owner` has started and that still run after a wait."""
        processes = self._adopted.pop(owner, set())
        if not processes:
            return []
        self._owned = None
        parents = self._look()
        return _describe_left({process: parents[process] for process in processes if process in parents})

    def may_have_changed(self) -> bool:
        """Tell whether a descendant may have started or ended since the last call, and so since the last list of them.

        Where this process has children, that takes a system which counts starts: none of anybody's, and no end of those known.
        """
        children, ended = has_children(), ended_children()
        last = self._read_last_start() if children else 0
        before, self._before = self._before, (children, ended, last)
        if ended is None or last is None or self._before != before:
            return True
        return any(has_ended(process.pid) for process in self._seen) if children else False

    def is_older(self, process: Process) -> bool:
        """Tell whether a process ran before the test, or was started in it by a higher-scoped fixture's setup."""
        return process in self._known

    def owner_of(self, pids: Collection[int]) -> int | None:
        """Return the higher-scoped fixture, not yet finalised, whose setup has started one of the processes."""
        for owner, processes in self._adopted.items():
            if any(process.pid in pids for process in processes):
                return owner
        return None

    def owned(self, *, anew: bool = True) -> dict[Process, int]:
        """Return the processes of higher-scoped fixtures that are not yet finalised, and their descendants, by the fixture.

        Lists processes only where that is seen to be needed by a small file: else, and with `anew` off, the last list stands.
        """
        if not self._adopted:
            return {}
        if anew and self.are_starts_counted:
            self._look()
        if self._owned is None:
            self._owned = self._find_owned()
        return self._owned

    def _find_owned(self) -> dict[Process, int]:
        from pytest_gpuleak.adapters.processes.facts import command_line
        from pytest_gpuleak.adapters.processes.kinds import is_helper

        owners = {process: owner for owner, processes in self._adopted.items() for process in processes}
        by_pid = {process.pid: process for process in self._seen}
        for process, parent in self._seen.items():  # parents come before their children
            above = by_pid.get(parent)
            if process not in owners and above in owners and not is_helper(command_line(process.pid)):
                owners[process] = owners[above]
        return {process: owners[process] for process in self._seen if process in owners}

    @property
    def are_starts_counted(self) -> bool:
        """Return whether a list of processes is known to be up to date: no process has started since."""
        return bool(self._counts_starts)

    @property
    def has_owned(self) -> bool:
        """Return whether the setup of a higher-scoped fixture that is not yet finalised has started a process."""
        return bool(self._adopted)

    def _look(self) -> dict[Process, int]:
        if not has_children():
            self._seen, self._last_start, self._owned = {}, None, None
            return self._seen
        last = self._read_last_start()
        if last is None or last != self._last_start:
            # The number is read before the list, so the next call finds processes that start in between.
            self._last_start = last
            self._seen, self._owned = self._list_anew(), None
        return self._seen

    def _list_anew(self) -> dict[Process, int]:
        """List the descendants. One that was seen before, by its start, is not asked for again: that takes ten times as long."""
        # Imported here because it imports psutil.
        from pytest_gpuleak.adapters.processes.facts import find_process, list_descendants, start_of

        before, known = self._starts, {process.pid: process for process in self._seen}
        seen: dict[Process, int] = {}
        self._starts = {}
        for pid, parent in (self._list or list_descendants)().items():
            start = self._starts[pid] = start_of(pid)
            is_known = start is not None and start == before.get(pid)
            process = known.get(pid) if is_known else find_process(pid)
            if process is not None:
                seen[process] = parent
        return seen

    def _read_last_start(self) -> int | None:
        if self._counts_starts is None:
            self._counts_starts = starts_are_counted()
        return last_start() if self._counts_starts else None

    def _candidates(self) -> dict[Process, int]:
        seen = self._look()
        if seen.keys() <= self._known:
            return {}
        new = [process for process in seen if process not in self._known]
        # Imported here for the same reason as in `_look`.
        from pytest_gpuleak.adapters.processes.facts import command_line, environment_of, still_runs
        from pytest_gpuleak.adapters.processes.kinds import helper_pids, is_fork_server, is_helper, is_other_rank

        by_pid = {process.pid: process for process in seen}
        command_of = cache(command_line)  # of those that are new and their parents alone

        def is_server(process: Process) -> bool:
            # A fork of a fork server or xdist worker has the command line of its parent.
            above = seen[process]
            is_fork = above in by_pid and is_fork_server(command_of(above))
            return is_fork_server(command_of(process.pid)) and not is_fork

        own, helpers = command_line(os.getpid()), helper_pids()
        mine: dict[Process, int] = {}
        for process in new:  # parents come before their children
            command, parent = command_of(process.pid), by_pid.get(seen[process])
            if process in self._helpers or not still_runs(process):
                continue
            known_helper = parent in self._helpers or process.pid in helpers or (command != own and is_helper(command))
            if known_helper or is_other_rank(command, partial(environment_of, process.pid)):
                self._helpers.add(process)
            elif not is_server(process) and (parent is None or parent in mine or is_server(parent)):
                mine[process] = seen[process]
            # Else it is a fork server, or a child of a process older than the test.
        return mine


def _describe_left(candidates: dict[Process, int]) -> list[LeftProcess]:
    from pytest_gpuleak.adapters.processes.facts import MOST_WAITS, describe, settle

    left = settle(candidates, MOST_WAITS)
    return describe(left) if left else []


def has_children() -> bool:
    """Return whether this process has children, zombies included; True if the operating system cannot tell."""
    if not hasattr(os, "waitid"):
        return True  # Windows, and macOS before Python 3.13
    try:
        # WNOWAIT leaves an ended child to the code that waits for it.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def ended_children() -> int | None:
    """Return a count that rises with each child that has ended and was waited for; None where there is none (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def last_start() -> int | None:
    """Return the last pid or thread id that the system assigned (``/proc/loadavg``); None if unknown."""
    try:
        return int(read_kernel_file("/proc/loadavg").rsplit(None, 1)[1])
    except (OSError, ValueError, IndexError):
        return None


def starts_are_counted() -> bool:
    """Return whether `last_start` is reliable: containers and sandboxes may show a fake or outdated file."""
    before = last_start()
    if before is None:
        return False
    thread = threading.Thread(target=int)
    thread.start()
    thread.join(timeout=1)
    return last_start() != before

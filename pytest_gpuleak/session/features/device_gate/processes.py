"""The processes that the driver lists: which are this run's, which have ended, and who has started them.

Where the driver's pids are not ours, the agents of helper processes tell what these have on a device.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.nvml.readings import ProcessMemory
from pytest_gpuleak.engine.left_behind import owner_of
from pytest_gpuleak.model.devices import Occupied

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuleak.adapters.nvml.readings import NvmlReading
    from pytest_gpuleak.engine.detect.processes import Children
    from pytest_gpuleak.engine.settle.device_wait import Standing
    from pytest_gpuleak.session.features.children.agents import Agents


CURRENT_TEST: Final = "PYTEST_CURRENT_TEST"
"""Variable with the test and its phase, which pytest sets, and the processes that a test starts inherit
(https://docs.pytest.org/en/stable/example/simple.html#pytest-current-test-environment-variable)."""


class ListedProcesses:
    """Tell the processes that the driver lists apart, by pid, from one reading to the next."""

    def __init__(self, children: Children, *, is_worker: bool) -> None:
        self._children = children
        self._parent = os.getppid() if is_worker else 0
        self._ours: set[int] = set()
        self._parents: dict[int, list[int]] = {}
        self._starters: dict[int, str] = {}
        self._told: dict[tuple[str, int], int] = {}
        self._foreign_told: set[str] = set()

    def note(self, readings: Mapping[str, NvmlReading]) -> None:
        """Note which processes of this run are listed: they stay this run's when their parents have ended."""
        rows = [row for reading in readings.values() for row in (*reading.children, *reading.others)]
        listed = {row.pid for row in rows}
        children = {row.pid for reading in readings.values() for row in reading.children}
        self._ours = (self._ours & listed) | children
        self._parents = {pid: parents for pid, parents in self._parents.items() if pid in listed}
        self._starters = {pid: starter for pid, starter in self._starters.items() if pid in listed}
        self._told = {key: size for key, size in self._told.items() if key[1] in listed}

    def standings(self, device: str, now: NvmlReading, before: NvmlReading, nodeid: str) -> dict[int, Standing]:
        """Return the standing of each process that is listed on a device after a test."""
        if now.own is None:  # its children are what agents tell (`AgentFigures.add_to`)
            return {row.pid: self._standing(device, row, nodeid) for row in now.children}
        known = {row.pid for row in before.others}
        own = {row.pid for row in now.children} | self._ours
        return {
            row.pid: self._standing(device, row, nodeid)
            for row in (*now.children, *now.others)
            if row.pid in own or (row.pid not in known and self._is_orphan(row.pid, nodeid))
        }

    def _is_orphan(self, pid: int, nodeid: str) -> bool:
        """Tell whether a process that was not listed before is the test's: it has ended, or its environment says so."""
        from pytest_gpuleak.adapters.processes.facts import has_ended

        if not has_ended(pid) and _started_in(pid) != nodeid:
            return False
        self._ours.add(pid)
        return True

    def _standing(self, device: str, row: ProcessMemory, nodeid: str) -> Standing:
        from pytest_gpuleak.adapters.processes.facts import has_ended, parents_of

        if has_ended(row.pid):
            return "ending"
        if row.pid not in self._parents:
            self._parents[row.pid] = parents_of(row.pid)
        place, is_up = self._children.starter_of((row.pid, *self._parents[row.pid]))
        if row.pid not in self._starters:
            self._starters[row.pid] = (_started_in(row.pid) or nodeid) if place is None else owner_of(place)
        told = self._told.get((device, row.pid))
        return "apart" if is_up or (told is not None and (row.bytes or 0) <= told) else "left"

    def describe(self, device: str, pid: int, size: int) -> Occupied:
        """Describe a process that the test has left, which is told once."""
        self._told[device, pid] = size
        return Occupied(device, "process", size, pid, command_of(pid), self._starters.get(pid, ""))

    def are_foreign_untold(self, used: Iterable[str]) -> bool:
        """Tell whether a device is used for which `tell_foreign` was not asked."""
        return not self._foreign_told.issuperset(used)

    def tell_foreign(self, before: Mapping[str, NvmlReading], used: Iterable[str]) -> list[Occupied]:
        """Describe, once for each device, the processes that are not of this run and were on it before it was used."""
        found: list[Occupied] = []
        for device in sorted(set(used) - self._foreign_told):
            self._foreign_told.add(device)
            reading = before.get(device)
            if reading is not None and reading.own is not None:
                rows = (row for row in reading.others if row.pid not in self._ours)
                found += [
                    Occupied(device, "foreign", row.bytes or 0, row.pid, command_of(row.pid))
                    for row in rows
                    if not self._is_of_this_run(row.pid)
                ]
        return found

    def _is_of_this_run(self, pid: int) -> bool:
        """Tell whether a process is another worker of xdist's, or descends from one."""
        if not self._parent:
            return False
        from pytest_gpuleak.adapters.processes.facts import parents_of

        return pid == self._parent or self._parent in parents_of(pid)


def command_of(pid: int) -> str:
    """Describe a process by its command line; empty if it has ended or cannot be seen."""
    from pytest_gpuleak.adapters.processes.facts import command_line, describe_command, find_process

    if find_process(pid) is None:
        return ""
    return describe_command(pid, command_line(pid), command_line(os.getpid()))


def _started_in(pid: int) -> str:
    """Return the nodeid of the test in which a process was started, by its environment; empty if that does not tell."""
    from pytest_gpuleak.adapters.processes.facts import environment_of

    return environment_of(pid).get(CURRENT_TEST, "").rpartition(" (")[0]


class AgentFigures:
    """Put the figures of agents into readings that cannot tell processes apart, by pid and device.

    They are what a process's frameworks have reserved: its context, and what is allocated beside them, is not in there.
    """

    def __init__(self, children: Children, agents: Agents | None) -> None:
        self._children = children
        self.agents = agents
        self._sizes: dict[int, dict[str, int]] = {}
        self._silent: set[int] = set()

    @property
    def are_complete(self) -> bool:
        """Tell whether every helper process that runs has answered last time."""
        return not self._silent and all(process.pid in self._sizes for process in self._children.owned())

    def add_to(self, readings: dict[str, NvmlReading]) -> dict[str, NvmlReading]:
        """Return the readings; those without a process of ours have the processes with an agent as their children."""
        if all(reading.own is not None for reading in readings.values()):
            return readings
        self._ask()
        return {
            device: reading
            if reading.own is not None
            else reading._replace(children=self._rows(reading.uuid), others=())
            for device, reading in readings.items()
        }

    def _ask(self) -> None:
        if self.agents is None:
            return
        from pytest_gpuleak.adapters.processes.facts import has_ended

        answers = self.agents.on_devices()
        # Such a process is late, or its agent has ended before it.
        self._silent = {pid for pid in (self._sizes.keys() | self._silent) - answers.keys() if not has_ended(pid)}
        self._sizes = answers

    def _rows(self, uuid: str) -> tuple[ProcessMemory, ...]:
        digits = uuid.partition("-")[2].lower()  # as frameworks have NVML's, without its prefix
        return tuple(
            ProcessMemory(pid, size)
            for pid, sizes in self._sizes.items()
            for device, size in sizes.items()
            if device.lower() == digits
        )

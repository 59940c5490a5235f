"""What helper processes have on a device where the driver's pids are not ours: their agents tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.nvml.readings import ProcessMemory

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.nvml.readings import NvmlReading
    from pytest_gpuleak.engine.detect.processes import Children
    from pytest_gpuleak.session.features.children.agents import Agents


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

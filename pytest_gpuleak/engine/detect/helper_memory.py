"""Follow the memory of helper processes that higher-scoped fixtures have started, from test to test. No verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.adapters.processes.usage import own_bytes
from pytest_gpuleak.model.helpers import MOST_TESTS, WARM_UP, HelperGrowth, HelperMemory, HelperReading
from pytest_gpuleak.model.readings import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psutil import Process

    from pytest_gpuleak.adapters.nvml.driver import LazyNvml
    from pytest_gpuleak.engine.detect.processes import Children
    from pytest_gpuleak.engine.detect.protocol import FixtureKey


class _Run(NamedTuple):
    test: str
    before: int
    after: int


class _Identity(NamedTuple):
    name: str
    command: str
    fixture: str


class _Course:
    """One helper's bytes on the host or a device, over the tests that it meets."""

    __slots__ = ("_growth", "before", "first", "identity", "last", "run", "settled", "tests")

    def __init__(self, identity: _Identity, first: int) -> None:
        self.identity = identity
        self.first = self.last = first
        self.settled: int | None = None
        self.tests = 0
        self.before: int | None = None
        self.run: _Run | None = None
        """The last run. What the helper lets go of before the next one, as it answers first, it has not kept."""
        self._growth: dict[str, HelperGrowth] = {}

    def begin(self, size: int) -> None:
        self.before = size
        self._end_run(size)

    def end(self, test: str, size: int) -> int | None:
        """Note a reading at the end of a test; return the reading at its beginning."""
        before, self.before, self.last = self.before, None, size
        self.tests += 1
        if self.tests == WARM_UP:
            self.settled = size
        self.run = None if before is None else _Run(test, before, size)
        return before

    def _end_run(self, size: int) -> None:
        if self.run is not None:
            test, before, after = self.run
            step = min(after, size) - before
            known = self._growth.get(test, HelperGrowth(test, 0, 0, 0, step))
            grew = known.grew + (step > 0)
            self._growth[test] = HelperGrowth(
                test, known.runs + 1, grew, known.bytes + max(0, step), min(known.least, step)
            )
            self.run = None

    def growth(self) -> tuple[HelperGrowth, ...]:
        self._end_run(self.last)
        grown = [one for one in self._growth.values() if one.bytes > 0]
        return tuple(sorted(grown, key=lambda one: -one.bytes)[:MOST_TESTS])


class HelperWatch:
    """Read the helpers before and after each test; those whose fixture is torn down in it, before their teardown."""

    def __init__(self, children: Children, driver: LazyNvml) -> None:
        self._children = children
        self._driver = driver
        self._courses: dict[tuple[Process, str], _Course] = {}
        self._identities: dict[Process, _Identity] = {}
        self._on_devices: dict[str, dict[int, int]] | None = {}
        self._asked = False
        self._test = ""
        self._readings: dict[tuple[Process, str], HelperReading] = {}

    def begin_test(self, nodeid: str) -> None:
        """Read what each helper has before a test."""
        self._test = nodeid.partition("[")[0]
        self._readings = {}
        owned = self._children.owned(anew=False)  # the test has just begun
        if not owned:
            return
        if not self._asked:
            self._ask_driver()
        for process, device, size in self._read(owned):
            course = self._courses.get((process, device))
            if course is not None:
                course.begin(size)

    def end_test(self) -> tuple[HelperReading, ...]:
        """Read what each helper has after the test; return all of the test's readings that differ from those before."""
        self._end(self._children.owned())
        self._test, readings = "", self._readings
        self._readings = {}
        return tuple(one for one in readings.values() if one.before != one.after)

    def before_teardown(self, fixture: FixtureKey) -> None:
        """Read the helpers of a fixture that is torn down in the running test, or after it, before they end."""
        if self._test:
            self._end({process: owner for process, owner in self._children.owned().items() if owner == fixture})

    def helpers(self, worker: str, *, agent: bool) -> list[HelperMemory]:
        """Return what each helper has had over its tests."""
        return [
            HelperMemory(
                pid=process.pid,
                name=course.identity.name,
                command=course.identity.command,
                fixture=course.identity.fixture,
                worker=worker,
                device=device,
                tests=course.tests,
                first=course.first,
                settled=course.settled,
                last=course.last,
                growth=course.growth(),
                agent=agent,
            )
            for (process, device), course in self._courses.items()
        ]

    def _end(self, owned: dict[Process, FixtureKey]) -> None:
        if not owned:
            return
        self._ask_driver()
        for process, device, size in self._read(owned):
            key = (process, device)
            if key in self._readings:
                continue
            course = self._courses.get(key)
            if course is None:
                course = self._courses[key] = _Course(self._identify(process, owned[process]), size)
            self._readings[key] = HelperReading(process.pid, device, course.end(self._test, size), size)

    def _read(self, owned: dict[Process, FixtureKey]) -> Iterator[tuple[Process, str, int]]:
        is_certain = self._children.are_starts_counted
        for process in owned:
            size = own_bytes(process, is_certain=is_certain)
            if size is not None:
                yield process, HOST, size
                for device, sizes in (self._on_devices or {}).items():
                    if process.pid in sizes:
                        yield process, device, sizes[process.pid]

    def _ask_driver(self) -> None:
        """Ask the driver what processes hold, once a test, unless it cannot tell which are ours (in a container)."""
        self._asked = True
        if self._on_devices is None:
            return
        readings = self._driver.read(bounded=False)
        if all(reading.own is None for reading in readings.values()):
            self._on_devices = None
            return
        self._on_devices = {
            device: {row.pid: row.bytes for row in reading.children if row.bytes is not None}
            for device, reading in readings.items()
        }

    def _identify(self, process: Process, fixture: FixtureKey) -> _Identity:
        """Name a helper once it has met a test: by then it has started its program."""
        if process not in self._identities:
            from pytest_gpuleak.adapters.processes.facts import name_and_command

            name, command = name_and_command(process.pid)
            self._identities[process] = _Identity(name, command, self._children.name_of(fixture))
        return self._identities[process]

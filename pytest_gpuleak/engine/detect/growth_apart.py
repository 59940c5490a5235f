"""Keep apart from a test's growth what higher-scoped fixtures, and the plugin itself, add and let go meanwhile."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from pytest_gpuleak.model.readings import HOST, Key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpuleak.engine.detect.protocol import FixtureKey
    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.policy import Policy


class Counters(Protocol):
    """The counters of one process: `detect.counters.CounterWatch`."""

    collected: dict[Key, int]

    def read(self) -> dict[Key, int]:
        """Read all counters."""

    def added(self, before: Mapping[Key, int], after: Mapping[Key, int]) -> dict[Key, int]:
        """Return what was added between two readings."""


def imported_since(count: int) -> tuple[str, ...]:
    """Return the names of the modules that were imported since there were `count`, but for the plugin's own: they excuse nothing."""
    added = list(sys.modules)[count:] if len(sys.modules) > count else []
    return tuple(name for name in added if type(name) is str and not name.startswith("pytest_gpuleak."))


class GrowthApart:
    """Follow fixtures as `FixtureEvents` does; `sizes` is what is not the running test's own, by counter."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.sizes: dict[Key, int] = {}
        self.imported = 0
        """Modules imported meanwhile: what they take is in `sizes`, and excuses no growth of the test's own."""
        self._levels: list[_Level] = []
        self._owned: dict[FixtureKey, dict[Key, int]] = {}
        self._set_up: set[FixtureKey] = set()
        self._to_go: dict[Key, int] = {}
        self._others_filled = False
        self.before_teardown: dict[Key, int] | None = None
        """The counters before the first teardown of the run, less `sizes`; None: there was none."""
        self.freed: dict[Key, int] = {}
        """What the teardowns have freed beyond what the setups had added: tests had put it into the fixtures."""

    def begin(self) -> None:
        """Begin a run of a test."""
        if self.sizes:
            self.sizes = {}
        self.imported = 0
        self._levels.clear()
        self._set_up.clear()
        self._to_go.clear()
        self._others_filled = False
        self.before_teardown = None
        self.freed.clear()

    def setup_begins(self, fixture: FixtureKey, place: FixturePlace, policy: Policy) -> None:  # noqa: ARG002
        """Stop counting growth for the test."""
        self._levels.append(_Level(self._counters))

    def setup_ends(self, fixture: FixtureKey, duration_s: float, *, failed: bool) -> None:  # noqa: ARG002
        """Book the setup's growth to the fixture."""
        if not self._levels:
            return  # its setup began before the counters were watched
        level = self._levels.pop()
        added = self._counters.added(level.before, self._counters.read())
        self._owned[fixture] = {key: size - level.inner.get(key, 0) for key, size in added.items()}
        self._set_up.add(fixture)
        self._leave_out(added)
        self._leave_out_rest(level)

    def teardown_begins(self, fixture: FixtureKey) -> None:  # noqa: ARG002
        """Read the counters before the fixture's finalizers."""
        level = _Level(self._counters)
        if self.before_teardown is None and not self._levels:
            self.before_teardown = {key: size - self.sizes.get(key, 0) for key, size in level.before.items()}
        self._levels.append(level)

    def teardown_ends(self, fixture: FixtureKey) -> None:
        """Do not credit the test with what others had put into the fixture.

        Of a fixture that this run has set up, that is the setup's own memory. Of one that was up before, the host's counter
        cannot tell what this test and what earlier ones put there: none of it is credited, and the re-run, which sets the
        fixture up itself, decides. What devices let go beside a setup's memory are arrays, which are known one by one.
        """
        for key, size in self._owned.pop(fixture, {}).items():
            self._to_go[key] = self._to_go.get(key, 0) + size
        self._others_filled |= fixture not in self._set_up
        if self._levels:
            self._let_go(self._levels.pop())

    @contextmanager
    def values_let_go(self) -> Iterator[None]:
        """Take what the body frees for values of fixtures that were torn down: the test's own reference is the last."""
        level = _Level(self._counters)
        yield
        self._let_go(level)

    def _let_go(self, level: _Level) -> None:
        """Leave out what was freed since the level began, as far as others had put it into fixtures."""
        booked = level.inner
        for key, size in self._counters.added(level.before, self._counters.read()).items():
            rest, to_go = size - booked.get(key, 0), self._to_go.get(key, 0)
            self.freed[key] = self.freed.get(key, 0) + max(-rest - to_go, 0)
            if key[0] == HOST and self._others_filled:
                booked[key] = size
            elif rest < 0 < to_go:
                freed = min(-rest, to_go)
                self._to_go[key] = to_go - freed
                booked[key] = booked.get(key, 0) - freed
        self._leave_out(booked)
        if self._others_filled:
            self._leave_out_rest(level)

    def _leave_out(self, added: Mapping[Key, int]) -> None:
        """Count what was added for no test, and not for the fixture in whose setup or teardown it was added."""
        inner = self._levels[-1].inner if self._levels else self.sizes
        for key, size in added.items():
            inner[key] = inner.get(key, 0) + size

    def _leave_out_rest(self, level: _Level) -> None:
        self._counters.collected = level.collected  # of growth that is left out nothing can be hidden
        if not self._levels:
            self.imported += len(imported_since(level.modules))

    @contextmanager
    def kept_apart(self) -> Iterator[None]:
        """Leave what the body adds out of the test's growth: the plugin works in the middle of the test."""
        level = _Level(self._counters)
        try:
            yield
        finally:
            self._leave_out(self._counters.added(level.before, self._counters.read()))
            self._leave_out_rest(level)


class _Level:
    """A higher-scoped fixture's setup or teardown in progress: counters and modules before it, and growth of fixtures within it."""

    __slots__ = ("before", "collected", "inner", "modules")

    def __init__(self, counters: Counters) -> None:
        self.before = counters.read()
        self.collected = dict(counters.collected)
        self.inner: dict[Key, int] = {}
        self.modules = len(sys.modules)

"""Know the arrays that are older than a test, by weak handles and plain data: what a run lets go, it did not add.

A bounded buffer that is full of earlier tests' arrays drops one for each that it takes, and a fixture's attribute may be
replaced test by test. Known are what earlier suspects left, what wider fixtures made, and what was there before the first
test.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import array_types, select_arrays
from pytest_gpuleak.adapters.bulk import read_and_hold
from pytest_gpuleak.engine.limits import LEAST_NETTED, MOST_OLDER
from pytest_gpuleak.heap.collector import get_objects
from pytest_gpuleak.model.readings import bytes_by_device

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpuleak.adapters.bulk import Held
    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.detect.fixture_ownership import FixtureOwnership, OwnedSetup
    from pytest_gpuleak.engine.detect.protocol import Detector
    from pytest_gpuleak.engine.left_behind import Group, LeftBehind
    from pytest_gpuleak.model.readings import ArrayReading


class OlderArrays:
    """The arrays of one process that are older than the running test, as far as known."""

    def __init__(self, left_behind: LeftBehind, ownership: FixtureOwnership) -> None:
        self._left_behind = left_behind
        self._ownership = ownership
        self._met: list[Held] | None = None
        self._large: list[tuple[None, Held]] = []
        self._standing: list[tuple[Group | OwnedSetup | None, Held]] = []
        self._before: list[list[Held]] = []  # what was alive when a running teardown began, outermost first

    def begin_test(self) -> None:
        """Note which of the larger arrays are there before a test: what dies from now on, the test lets go."""
        self._before.clear()
        of_fixtures = [
            (setup, one)
            for setup in self._ownership.active
            for one in setup.held
            if one.reading.storage_bytes >= LEAST_NETTED and one.handle.alive()
        ]
        self._large = [known for known in self._large if known[1].handle.alive()]
        # Each test pays for these: see docs/developing/performance.md.
        self._standing = [*self._left_behind.large(), *of_fixtures, *self._large]

    def teardown_begins(self) -> None:
        """Begin to leave out what goes with a wider fixture: its last test has not let go of it."""
        self._before.append([one for _, one in self._standing if one.handle.alive()])

    def teardown_ends(self) -> None:
        """Leave out what has gone since the teardown began."""
        if self._before:
            gone = {id(one) for one in self._before.pop() if not one.handle.alive()}
            self._standing = [known for known in self._standing if id(known[1]) not in gone]

    def let_go(self, of_reruns: Collection[int]) -> dict[str, int]:
        """Return by device the bytes that were there before the test and are gone, less those of these storages.

        And less what is there because earlier tests were run again: a test must not pass for letting that go.
        """
        gone: list[ArrayReading] = []
        active, extra = self._ownership.active, self._left_behind.extra
        standing = Counter(owner for owner, _ in self._standing if isinstance(owner, tuple))
        credited: Counter[Group] = Counter()
        for owner, held in self._standing:
            if held.handle.storage in of_reruns or held.handle.alive():
                continue
            if isinstance(owner, tuple):
                credited[owner] += 1
                counts = credited[owner] <= standing[owner] - extra[owner]
            else:
                counts = owner is None or owner in active  # garbage of a fixture that was torn down may go late
            if counts:
                gone.append(held.reading)
        return dict(bytes_by_device(gone))

    @property
    def is_complete(self) -> bool:
        """Whether the arrays that were there before the first test are known."""
        return self._met is not None

    def look(self, detector: Detector, frameworks: Sequence[ArrayFramework]) -> None:
        """Walk the heap once for the arrays that are alive, before the first test."""
        self._met = []
        types = array_types(frameworks)
        if not types:
            return
        with detector.whole_heap():
            arrays = select_arrays(get_objects(), types)[:MOST_OLDER]
        self._met = list(read_and_hold(arrays, frameworks).values())
        arrays.clear()
        self._large = [(None, one) for one in self._met if one.reading.storage_bytes >= LEAST_NETTED]

    def all(self) -> list[Held]:
        """Return the arrays that are alive, each storage once."""
        self._met = [one for one in self._met or () if one.handle.alive()]
        of_fixtures = chain.from_iterable(setup.held for setup in self._ownership.active)
        found: dict[tuple[str, int], Held] = {}
        for one in chain(self._left_behind.held(), of_fixtures, self._met):
            if one.handle.alive():
                found.setdefault((one.reading.device, one.handle.storage), one)
        return list(found.values())

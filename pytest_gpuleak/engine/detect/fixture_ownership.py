"""Assign arrays to higher-scoped fixtures: arrays born during a fixture's setup or teardown are the fixture's."""

from __future__ import annotations

from contextlib import contextmanager
from gc import get_referents
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.bulk import read_and_hold
from pytest_gpuleak.engine.limits import MOST_CONTAINERS
from pytest_gpuleak.heap.collector import PausedCollector
from pytest_gpuleak.heap.immortal_containers import is_tracked
from pytest_gpuleak.heap.referrers import reaches_everything
from pytest_gpuleak.heap.safe_access import weak_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pytest_gpuleak.adapters.bulk import Held
    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.detect.protocol import Detector, FixtureKey
    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.policy import Policy


class OwnedSetup:
    """Hold what was born in one setup of a higher-scoped fixture: ids, and weak handles on the memory."""

    def __init__(self, place: FixturePlace, policy: Policy) -> None:
        self.place = place
        self.policy = policy
        self.identities: set[int] = set()
        self.held: list[Held] = []
        self.setup_s = 0.0
        self.failed = False
        """Whether the setup has raised: the traceback, which pytest drops at teardown, holds what it has made."""
        self.outlived_failure = False
        """Whether a test has failed since: garbage of its traceback may hold the memory."""

    def holds_memory(self) -> bool:
        """Tell whether memory born in it is still there, without walking the heap."""
        return any(one.handle.alive() for one in self.held)


class FixtureOwnership:
    """Keep a test's arrays apart from the arrays of the higher-scoped fixtures it uses."""

    def __init__(self, detector: Detector, frameworks: Sequence[ArrayFramework]) -> None:
        self.detector = detector
        self._frameworks = frameworks
        self._active: dict[FixtureKey, OwnedSetup] = {}
        self._owners: list[OwnedSetup] = []  # being set up or torn down, outermost first
        self._released: list[OwnedSetup] = []
        self.own: dict[int, Callable[[], object | None] | None] = {}
        """The arrays that the test made before a higher-scoped fixture moved the freeze point, by id.

        Each with a weak reference; None for a type without any.
        """
        self._before: list[set[int]] = []  # ids that were there when a running teardown began, outermost first
        self.others: set[int] = set()
        """Ids of arrays in the test's epoch that higher-scoped fixtures made during their teardown."""
        self.held_by_released = False
        """Whether a fixture that was torn down since the test began had held an array of the test's."""

    @property
    def active_ids(self) -> frozenset[int]:
        """Return the ids of pytest's fixtures that are set up."""
        return frozenset(self._active)

    def begin(self) -> None:
        """Begin a test: nothing is its own yet."""
        self.held_by_released = False
        if self.own or self._owners or self._before or self.others:
            self.own.clear()
            self._owners.clear()
            self._before.clear()
            self.others.clear()

    @property
    def has_own(self) -> bool:
        """Whether something is alive, or may be, that the test made before a higher-scoped fixture."""
        return any(one is None or one() is not None for one in self.own.values())

    @property
    def active(self) -> list[OwnedSetup]:
        """Return the higher-scoped fixtures that are set up now."""
        return list(self._active.values())

    @property
    def active_roots(self) -> frozenset[str]:
        """Return the roots, as holders have them, of the higher-scoped fixtures that are set up now."""
        return frozenset(f"fixture {setup.place.name!r}" for setup in self._active.values())

    def setup_begins(self, fixture: FixtureKey, place: FixturePlace, policy: Policy) -> None:
        """Assign what was born so far; what is born from here on is the fixture's."""
        self._give()
        setup = OwnedSetup(place, policy)
        self._active[fixture] = setup
        self._owners.append(setup)

    def setup_ends(self, fixture: FixtureKey, duration_s: float, *, failed: bool) -> None:
        """Give the fixture what was born in its setup."""
        setup = self._active.get(fixture)
        if setup is not None and setup in self._owners:
            self._give()
            self._owners.remove(setup)
            setup.setup_s = duration_s
            setup.failed = failed

    def setup_after_failure(self, fixture: FixtureKey) -> OwnedSetup | None:
        """Return the setup of a fixture whose memory the garbage of a failed test may hold, if there is one."""
        setup = self._active.get(fixture)
        return setup if setup is not None and setup.outlived_failure and setup.holds_memory() else None

    def teardown_begins(self, fixture: FixtureKey) -> None:
        """Record which arrays exist before the fixture's finalizers run."""
        if fixture in self._active:
            # Do not move the freeze point here: garbage behind it would only go in a full collection.
            self._before.append(self._in_sight(self.detector.look()))

    def teardown_ends(self, fixture: FixtureKey) -> None:
        """Assign what the teardown made to the fixture, and report its setup in `released`."""
        setup = self._active.pop(fixture, None)
        if setup is None:
            return
        if setup in self._owners:  # its setup has failed
            self._owners.remove(setup)
        elif self._before:
            there_before, now = self._before.pop(), self.detector.look()
            self._compare(there_before, now)
            born = [array for array in now if id(array) not in there_before | self.others]
            now.clear()
            self._add(setup, born)
            self.others.update(map(id, born))
        self._released.append(setup)

    @contextmanager
    def values_let_go(self) -> Iterator[None]:
        """Take what the body frees for values of fixtures that were torn down."""
        if self.held_by_released or not self._released:
            yield
            return
        there_before = self._in_sight(self.detector.look())
        yield
        if there_before:
            self._compare(there_before, self.detector.look())

    def note_held(self, value: object) -> None:
        """Note whether the value of a fixture leads to what the test has left, also in a cycle, which outlives the teardown."""
        if self.held_by_released or not is_tracked(value):  # most fixtures have no value
            return
        left = self._in_sight(self.detector.look())
        if left:
            with PausedCollector():
                self.held_by_released = _leads_to(value, left)

    def _in_sight(self, now: list[object]) -> set[int]:
        """Return the ids of what the test has made that is there `now`, before a higher-scoped fixture's setup, too."""
        older = {identity for identity, one in self.own.items() if one is None or one() is not None}
        return older.union(map(id, now))

    def _compare(self, there_before: set[int], now: list[object]) -> None:
        self.held_by_released |= not there_before <= self._in_sight(now)

    def released(self) -> list[OwnedSetup]:
        """Return the fixtures torn down since the last call."""
        released, self._released = self._released, []
        return released

    def postpone(self, setups: list[OwnedSetup]) -> None:
        """Check these fixtures again later: something that pytest drops soon may hold their values."""
        self._released = setups + self._released

    def note_failure(self) -> None:
        """Note that the last test did not pass, possibly because a fixture's setup failed."""
        for setup in (*self._active.values(), *self._released):
            setup.outlived_failure = True

    def disown(self, identities: set[int]) -> None:
        """Remove these ids from all fixtures: a new array may have reused the id of a fixture's array that died."""
        for setup in self._active.values():
            setup.identities -= identities

    def _give(self) -> None:
        born = self.detector.take_and_age(of_fixture=bool(self._owners))
        if not born:
            return
        identities = {id(array) for array in born}
        self.disown(identities)
        if not self._owners:
            self.own.update((id(array), weak_reference(array)) for array in born)
            return
        for identity in identities:
            self.own.pop(identity, None)
        self._add(self._owners[-1], born)

    def _add(self, owner: OwnedSetup, born: list[object]) -> None:
        owner.identities.update(map(id, born))
        owner.held += read_and_hold(born, self._frameworks).values()


def _leads_to(value: object, wanted: Collection[int]) -> bool:
    """Tell whether a value leads to an object with one of these ids, or may: the walk was cut.

    It loads no module: so many new objects would have the collector free the cycles before they are read.
    """
    pending, met = [value], set[int]()
    while pending and len(met) < MOST_CONTAINERS:
        one = pending.pop()
        if id(one) in wanted:
            return True
        if id(one) not in met and is_tracked(one) and not reaches_everything(one):
            met.add(id(one))
            pending += get_referents(one)
    return bool(pending)

"""Assign processes that were started and left running to a test, or to a higher-scoped fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.adapters.processes.watch import ProcessWatch
from pytest_gpuleak.heap.collector import collect_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.processes.facts import LeftProcess
    from pytest_gpuleak.engine.detect.protocol import FixtureKey
    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.policy import Policy


class LeftByFixture(NamedTuple):
    """The processes that a fixture's setup has started and that still run after its teardown."""

    place: FixturePlace
    policy: Policy
    processes: list[LeftProcess]


class Children(ProcessWatch):
    """Keep the processes of a test apart from the processes of the higher-scoped fixtures that it uses."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[FixtureKey, tuple[FixturePlace, Policy]] = {}
        self._left: list[LeftByFixture] = []
        self._outlived: dict[int, FixturePlace] = {}
        self.ran_before_teardown = False
        """Whether a process that the test has started ran before a fixture was torn down, which may have ended it."""

    def begin(self) -> None:
        """See `ProcessWatch`."""
        super().begin()
        self.ran_before_teardown = False

    def setup_begins(self, fixture: FixtureKey, place: FixturePlace, policy: Policy) -> None:
        """Take processes that start from here on as the fixture's."""
        self.enter_setup()
        self._places[fixture] = (place, policy)

    def setup_ends(self, fixture: FixtureKey, duration_s: float, *, failed: bool) -> None:  # noqa: ARG002
        """Assign the setup's processes to the fixture."""
        self.adopt(fixture)

    def teardown_begins(self, fixture: FixtureKey) -> None:  # noqa: ARG002
        """Look at the processes: what starts from here on is the test's too."""
        self.ran_before_teardown |= self.suspects()

    def teardown_ends(self, fixture: FixtureKey) -> None:
        """Collect the fixture's processes that still run."""
        place, policy = self._places.pop(fixture, (None, None))
        left = self.released(fixture)
        if place is not None and policy is not None and left:
            self._left.append(LeftByFixture(place, policy, left))
            self._outlived.update((process.pid, place) for process in left)

    def take_left_by_fixtures(self) -> list[LeftByFixture]:
        """Return what fixtures torn down since the last call have left running."""
        left, self._left = self._left, []
        return left

    def starter_of(self, pids: Sequence[int]) -> tuple[FixturePlace | None, bool]:
        """Return the fixture whose setup has started one of the processes, and whether it is up.

        `pids` are a process and its parents, the nearest first.
        """
        owner = self.owner_of(pids)
        place, _ = (None, None) if owner is None else self._places.get(owner, (None, None))
        if place is not None:
            return place, True
        return next((self._outlived[one] for one in pids if one in self._outlived), None), False

    def name_of(self, fixture: FixtureKey) -> str:
        """Return the name of a fixture that is up."""
        place, _ = self._places.get(fixture, (None, None))
        return "" if place is None else place.name

    def left(self) -> list[LeftProcess]:
        """Return the processes that the test has left running, after ending processes have ended."""
        collect_whole()  # an executor in a cycle ends its workers when it is collected
        return super().left()

"""Define the protocols of detection: of a strategy, which `epochs` and `heap_scan` are, and of what keeps fixtures' memory apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.policy import Policy


class Detector(Protocol):
    """Tells which arrays were born since a moment and are still alive.

    Between calls it holds no array. The lists that it returns hold arrays: drop them before user code runs again.
    """

    @property
    def sees_only_young(self) -> bool:
        """Tell whether `heap.collector` sees exactly what was born since `open` or `take_and_age`."""

    @property
    def hides_older(self) -> bool:
        """Tell whether `heap.collector` sees few objects: what was born since the freeze point, which may have moved."""

    def stop(self) -> None:
        """Restore the process as it was found. May be called twice."""

    def open(self) -> None:
        """Count everything alive as old."""

    def continue_epoch(self) -> bool:
        """Count all living arrays as old without moving the freeze point; return whether that can be done.

        A young collection then still reaches what was born since `open`.
        """

    def take_and_age(self, *, of_fixture: bool = False) -> list[object]:
        """Return the living arrays born since the last `open` or `take_and_age`, and count them as old.

        Those `of_fixture`, a wider one that a re-run has set up, stay old for the runs that follow.
        """

    def look(self) -> list[object]:
        """Return the living arrays born since the last `open` or `take_and_age`, without moving the freeze point."""

    def show_young(self) -> bool:
        """Let `heap.collector` see again all that was born in the epoch; return whether some of it had been hidden."""

    def find(self, identities: set[int]) -> list[object]:
        """Return the arrays alive anywhere on the heap whose id is in `identities`."""

    def close(self) -> None:
        """End the test's epoch, and keep the process's memory as it would be without the plugin."""

    def whole_heap(self) -> AbstractContextManager[None]:
        """Let `heap.collector.get_objects` and `heap.collector.get_referrers` see every object."""


FixtureKey: TypeAlias = int
"""The id of pytest's FixtureDef, which outlives each setup of the fixture."""


class FixtureEvents(Protocol):
    """Follows the setups of higher-scoped fixtures, which may be nested. A failed setup is torn down as well."""

    def setup_begins(self, fixture: FixtureKey, place: FixturePlace, policy: Policy) -> None:
        """Take growth from here on as the fixture's, which is defined at `place`."""

    def setup_ends(self, fixture: FixtureKey, duration_s: float, *, failed: bool) -> None:
        """Take growth from here on as the test's again, after a setup of `duration_s` seconds."""

    def teardown_begins(self, fixture: FixtureKey) -> None:
        """Note what is there before the fixture's own finalizers run."""

    def teardown_ends(self, fixture: FixtureKey) -> None:
        """Note the end of the teardown: everything that the setup made must be gone."""

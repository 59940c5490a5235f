"""Define the events of fixtures that outlive a test, for what keeps their memory apart from the test's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.policy import Policy

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

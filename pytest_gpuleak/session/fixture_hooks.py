"""Follow fixtures that outlive a test, for what keeps their memory apart from the test's."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.outcomes import OutcomeException

from pytest_gpuleak.session.fixtures import is_wider, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from pytest_gpuleak.engine.detect.protocol import FixtureEvents
    from pytest_gpuleak.model.policy import Policy

PLUGIN_ERRORS = (Exception, OutcomeException)
"""Errors of the plugin itself, which change no outcome. A timeout plugin's `Failed` is no Exception."""


class FixtureHooks:
    """Report the setups and teardowns of higher-scoped fixtures to `events`; `policy_of` returns a request's policy."""

    def __init__(
        self, events: Sequence[FixtureEvents], policy_of: Callable[[Any], Policy], shorten: Callable[[str], str]
    ) -> None:
        self._events = events
        self._policy_of = policy_of
        self._shorten = shorten

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, object, object]:
        """Report the setup of a higher-scoped fixture, and register for its teardown."""
        __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
        if not is_wider(fixturedef):
            return (yield)
        self._begin(fixturedef, request)
        started = perf_counter()
        failed = True
        try:
            result = yield
            failed = False
            return result
        finally:
            self._end(fixturedef, request.node, perf_counter() - started, failed=failed)

    def note_fault(self, stage: str, node: Any, error: BaseException) -> None:
        """Take a fault of the plugin in a stage (a name in `engine.stages`) at a test, or a fixture's node."""

    def before_teardown(self, fixturedef: Any, node: Any) -> None:
        """Prepare for the teardown of a fixture, on whose list of finalizers are those that are still to run."""

    def _begin(self, fixturedef: Any, request: Any) -> None:
        fixture = id(fixturedef)
        try:
            place, policy = place_of(fixturedef, request, self._shorten), self._policy_of(request)
        except PLUGIN_ERRORS as error:
            self.note_fault("BORDER", request.node, error)
            return
        self._tell(request.node, self._events, lambda each: each.setup_begins(fixture, place, policy))

    def _end(self, fixturedef: Any, node: Any, duration_s: float, *, failed: bool) -> None:
        fixture, inner_first = id(fixturedef), self._events[::-1]
        try:
            # Finalizers run last in, first out, so this call comes when all is torn down. Added now, past plugins that
            # list the finalizers of a setup (allure-pytest).
            torn_down = partial(self._end_teardown, fixturedef, node)
            finalizers = getattr(fixturedef, "_finalizers", None)
            if type(finalizers) is list:
                finalizers.insert(0, torn_down)
            else:
                fixturedef.addfinalizer(torn_down)
            self._tell(node, inner_first, lambda each: each.setup_ends(fixture, duration_s, failed=failed))
            # The fixture's own finalizers run after this call.
            fixturedef.addfinalizer(partial(self._begin_teardown, fixturedef, node))
        except PLUGIN_ERRORS as error:
            self.note_fault("BORDER", node, error)

    def _begin_teardown(self, fixturedef: Any, node: Any) -> None:
        fixture = id(fixturedef)
        try:
            self.before_teardown(fixturedef, node)
        except PLUGIN_ERRORS as error:
            self.note_fault("BORDER", node, error)
        self._tell(node, self._events, lambda each: each.teardown_begins(fixture))

    def _end_teardown(self, fixturedef: Any, node: Any) -> None:
        # As `FixtureDef.finish` does next: the value's memory must go before the teardown's end is told, not after it.
        fixturedef.cached_result = None
        fixture = id(fixturedef)
        self._tell(node, self._events[::-1], lambda each: each.teardown_ends(fixture))

    def _tell(self, node: Any, listeners: Sequence[FixtureEvents], event: Callable[[FixtureEvents], None]) -> None:
        for each in listeners:
            try:
                event(each)
            except PLUGIN_ERRORS as error:
                self.note_fault("BORDER", node, error)

"""NumPy's arrays that a higher-scoped fixture has made are known to be older than the test, until its teardown."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuleak.adapters.registry import arrays_in, own_frameworks
from pytest_gpuleak.engine.detect.counters import CounterWatch
from pytest_gpuleak.engine.run_tracker import RunTracker
from pytest_gpuleak.engine.stages import Unguarded
from pytest_gpuleak.model.outcomes import FixturePlace
from pytest_gpuleak.model.policy import Policy


class Index:
    def __init__(self, points: object) -> None:
        self.points = points


@pytest.fixture
def numpy() -> Any:
    return pytest.importorskip("numpy")


def test_arrays_of_objects_and_of_their_containers(numpy: Any) -> None:
    plain, listed, named = numpy.ones(10), numpy.ones(20), numpy.ones(30)
    found = arrays_in([vars(Index(plain)), [[listed], {"x": named}]])
    assert found.sizes == {id(plain): 80, id(listed): 160, id(named): 240}


def test_a_fixtures_arrays_are_known_until_its_teardown(numpy: Any) -> None:
    tracker = RunTracker(own_frameworks(), Unguarded(), CounterWatch((), ()))
    tracker.start(Policy())
    try:
        tracker.begin_run()
        if not tracker.detector.sees_only_young:
            pytest.skip("this interpreter, or another run in this process, has no epoch for it")
        key: Any = 1
        tracker.setup_begins(key, FixturePlace("index", "module", "test_it.py", None, None), Policy())
        index = Index(numpy.ones(100))
        tracker.setup_ends(key, 0.1, failed=False)
        own = Index(numpy.ones(100))
        known = tracker.untracked.alive()
        assert known[id(index.points)] == 800
        assert id(own.points) not in known
        tracker.teardown_begins(key)
        tracker.teardown_ends(key)
        assert id(index.points) not in tracker.untracked.alive()
    finally:
        tracker.stop()

"""What the runs of one suspect left, and how each array died: plain data for the judgement, and nothing kept alive."""

from __future__ import annotations

import gc
import types
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.bulk import Held
from pytest_gpuleak.engine.judge.counters import ARRAY_OBJECTS, explained
from pytest_gpuleak.engine.runs import Runs
from pytest_gpuleak.heap.threads import running_threads
from pytest_gpuleak.model.readings import HOST
from tests.support.standin import Buffer, StandInArrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ARRAYS = StandInArrays()


class Step:
    """A settle step that calls a function; `collects` as the steps of the settling say."""

    def __init__(self, call: Callable[[], object], *, collects: bool = False) -> None:
        self.call = call
        self.collects = collects

    def steps(self) -> Iterator[None]:
        self.call()
        yield


COLLECTION = Step(gc.collect, collects=True)


@pytest.fixture(autouse=True)
def _no_automatic_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def runs() -> Runs:
    tracker: Any = types.SimpleNamespace(
        guarded_arrays=[ARRAYS],
        frameworks=types.SimpleNamespace(storages=[]),
        threads=running_threads(),
        threaded=False,
        detector=types.SimpleNamespace(find=lambda _: []),
    )
    guard: Any = lambda _: nullcontext()  # noqa: E731 - of the stage
    return Runs(tracker, guard)


def left(runs: Runs, *buffers: object) -> None:
    """End a run that has left these buffers. A young collection is left out."""
    runs.end_run(list(buffers), lambda _: True, ())


def held(buffer: Buffer) -> Held:
    reading = ARRAYS.read(buffer)
    assert reading is not None
    return Held(ARRAYS.hold(buffer), reading)


def in_ring(buffer: Any) -> Any:
    """Give a buffer a reference to itself, so that only a collection frees it."""
    buffer.me = buffer
    return buffer


def test_what_dies_by_its_count_is_replaced(runs: Runs) -> None:
    kept = [Buffer()]
    left(runs, *kept)
    runs.begin_run(())
    with runs.marking():
        kept[0] = Buffer()
    left(runs, *kept)
    found: Any = runs.evidence()
    assert found.alive == ({0}, {1})
    assert [one.run for one in found.survivors] == [0, 1]
    assert (found.collected, found.cycles, runs.causes) == ({}, (), {"count"})


def test_all_that_was_left_may_go_by_its_count(runs: Runs) -> None:
    kept = [Buffer()]
    left(runs, *kept)
    runs.begin_run(())
    assert not runs.all_gone
    kept.clear()
    runs.poll("count")
    assert runs.all_gone


def test_a_collection_within_a_re_run_is_marked(runs: Runs) -> None:
    """Garbage of the first run, or replaced through a cycle: what died does not tell, so that another run is asked."""
    kept = [in_ring(Buffer())]
    left(runs, *kept)
    runs.begin_run(())
    with runs.marking():
        kept[0] = in_ring(Buffer())
        gc.collect()
    left(runs, *kept)
    found: Any = runs.evidence()
    assert (found.alive, found.collected) == (({0}, {1}), {1: {0}})
    assert runs.causes == {"collection"}
    assert not runs.all_gone


def test_what_dies_before_a_collection_is_none_of_its(runs: Runs) -> None:
    kept: list[Any] = [Buffer(), in_ring(Buffer())]
    left(runs, *kept)
    runs.begin_run(())
    with runs.marking():
        kept.clear()
        gc.collect()
    left(runs)
    assert runs.evidence().collected == {1: {1}}
    assert runs.causes == {"count", "collection"}


def test_a_test_may_empty_the_collectors_callbacks(runs: Runs) -> None:
    callbacks = gc.callbacks[:]
    try:
        with runs.marking():
            gc.callbacks.clear()
    finally:
        gc.callbacks[:] = callbacks
    assert gc.callbacks == callbacks


def test_nothing_is_garbage_in_a_run_that_began_from_a_settled_heap(runs: Runs) -> None:
    kept = [in_ring(Buffer())]
    left(runs, *kept)
    runs.settle([COLLECTION])
    runs.begin_run(())
    with runs.marking():
        kept[0] = in_ring(Buffer())
        gc.collect()
    left(runs, *kept)
    found: Any = runs.evidence()
    assert (found.exact, found.collected) == ({1}, {})
    assert found.alive == ({0}, {1})


def test_a_run_after_an_exact_one_is_not_exact_by_that(runs: Runs) -> None:
    kept = [Buffer()]
    left(runs, *kept)
    runs.settle(())
    runs.begin_run(())
    left(runs)
    runs.begin_run(())
    left(runs)
    assert runs.evidence().exact == {1}


def test_garbage_of_the_first_run_that_the_settling_collects_is_a_cycle(runs: Runs) -> None:
    kept = [in_ring(Buffer(100)), Buffer(50)]
    left(runs, *kept)
    del kept[0]
    runs.settle([COLLECTION])
    assert [one.storage_bytes for one in runs.evidence().cycles] == [100]
    assert runs.evidence().alive == (frozenset({1}),)
    assert (runs.settled, runs.collected) == (True, True)


def test_what_the_settling_after_a_re_run_collects_was_garbage_or_replaced_in_it(runs: Runs) -> None:
    kept = [in_ring(Buffer()), in_ring(Buffer())]
    left(runs, kept[0])
    runs.begin_run(())
    left(runs, kept[1])
    kept.clear()
    runs.settle([COLLECTION])
    found: Any = runs.evidence()
    assert (found.alive, found.collected) == (({0}, frozenset()), {1: {0}})


def test_what_a_settle_step_lets_go_was_about_to_go_when_the_run_before_had_ended(runs: Runs) -> None:
    kept = [Buffer()]
    left(runs, *kept)
    runs.begin_run(())
    left(runs)
    runs.settle([Step(kept.clear)])
    found: Any = runs.evidence()
    assert (found.alive, found.collected) == ((frozenset(), frozenset()), {})
    assert runs.causes == {"settled"}


def test_settle_steps_end_with_what_is_alive(runs: Runs) -> None:
    kept, taken = [Buffer()], []
    left(runs, *kept)
    runs.settle([Step(kept.clear), Step(lambda: taken.append(1))])
    assert taken == []
    assert runs.settled


def test_a_re_run_that_did_not_end_shows_nothing(runs: Runs) -> None:
    kept = [Buffer()]
    left(runs, *kept)
    runs.begin_run(())
    with runs.marking():
        kept.append(Buffer())  # and it fails
    assert runs.evidence().alive == (frozenset({0}),)
    assert (runs.count, runs.deciding) == (1, 1)
    runs.begin_run(())
    left(runs, kept[1])
    assert runs.evidence().alive == (frozenset({0}), frozenset({0, 1}))


def test_forgotten_re_runs_leave_the_first(runs: Runs) -> None:
    kept = [in_ring(Buffer()), in_ring(Buffer()), Buffer()]
    left(runs, kept[0], kept[2])
    runs.settle(())
    runs.begin_run(())
    left(runs, kept[1])
    runs.forget_reruns()
    found: Any = runs.evidence()
    assert (found.alive, found.exact, found.collected, runs.count) == (({0, 1},), frozenset(), {}, 1)


def test_a_traced_run_decides_nothing(runs: Runs) -> None:
    kept = []
    for number in range(3):
        if number:
            runs.begin_run((), traced=number == 2)
        kept.append(Buffer())
        left(runs, kept[-1])
    found: Any = runs.evidence()
    assert (found.traced, runs.deciding, runs.count) == (2, 2, 3)
    assert found.last == {0, 1}
    assert found.alive[2] == {0, 1, 2}


@pytest.mark.parametrize(("beside", "told", "doubtful"), [(False, {1, 2}, set()), (True, {2}, {1})])
def test_older_arrays_that_re_runs_let_go_are_told_and_beside_threads_from_the_second_on(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, *, beside: bool, told: set[int], doubtful: set[int]
) -> None:
    monkeypatch.setattr("pytest_gpuleak.engine.runs.others_work", lambda: beside)
    kept = [Buffer()]
    left(runs, *kept)
    for _ in range(2):
        older = [Buffer(700)]
        runs.begin_run([held(older[0])])
        with runs.marking():
            older.clear()
        left(runs)
    found: Any = runs.evidence()
    assert {run: [one.storage_bytes for one in gone] for run, gone in found.older_gone.items()} == {
        run: [700] for run in told
    }
    assert (found.older_doubtful, len(runs.of_reruns())) == (doubtful, len(told))
    assert runs.causes == set()


@pytest.mark.parametrize("settled", [False, True])
def test_older_arrays_may_be_replaced_through_a_cycle(runs: Runs, *, settled: bool) -> None:
    older, kept = [in_ring(Buffer())], [Buffer()]
    left(runs, *kept)
    if settled:
        runs.settle([COLLECTION])
    runs.begin_run([held(older[0])])
    with runs.marking():
        older.clear()
        gc.collect()
    left(runs)
    found: Any = runs.evidence()
    assert set(found.older_gone) == ({1} if settled else set())
    assert found.older_doubtful == (set() if settled else {1})


def test_what_a_run_left_is_no_older_array(runs: Runs) -> None:
    kept = [Buffer()]
    left(runs, *kept)
    runs.begin_run([held(kept[0])])
    with runs.marking():
        kept.clear()
    left(runs)
    assert runs.evidence().older_gone == {}


def test_bytes_that_a_run_has_added_are_net_of_what_it_released(runs: Runs) -> None:
    kept = [Buffer(100), Buffer(50, "cuda:0")]
    left(runs, *kept)
    assert explained(*runs.moved()) == {"cpu": 100, "cuda:0": 50, HOST: 100 + 2 * ARRAY_OBJECTS}
    runs.begin_run(())
    kept[0] = Buffer(130)
    left(runs, kept[0])
    assert explained(*runs.moved()) == {"cpu": 30, HOST: 30}


def test_arrays_are_not_kept_alive(runs: Runs) -> None:
    arrays: list[object] = [Buffer()]
    witness = weakref.ref(arrays[0])
    runs.end_run(arrays, lambda _: True, ())
    assert (arrays, witness()) == ([], None)
    left(runs, Buffer())
    runs.poll("count")
    assert runs.living() == []

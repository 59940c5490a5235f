"""Memory over the steps of a run, of storages that are made up: the peak is among the steps that are told."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.adapters.torch import peak_steps
from pytest_gpuleak.adapters.torch.peak_places import Place
from pytest_gpuleak.adapters.torch.peak_steps import Record, StepLog, steps_of
from pytest_gpuleak.model.peak_parts import MAX_STEPS


def record(number: int, size: int, ended: int) -> Record:
    one = Record(number, "cpu", size, Place(None, "call", "", ""))
    one.ended = ended
    one.category = "held" if number % 2 else "activation"
    return one


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 30)), max_size=300))
def test_the_peak_is_one_of_the_steps(made: list[tuple[int, int]]) -> None:
    last = len(made)
    records = [
        record(number, size, min(number + life, last) if life < 25 else 0)
        for number, (size, life) in enumerate(made, 1)
    ]
    alive = [
        sum(one.bytes for one in records if one.number <= at and (not one.ended or one.ended >= at))
        for at in range(1, last + 1)
    ]
    steps = steps_of(records, "cpu", lambda one: one.category)
    assert len(steps) <= MAX_STEPS
    assert max((sum(step.alive.values()) for step in steps), default=0) == max(alive, default=0)
    assert all(sum(step.alive.values()) == alive[step.at - 1] for step in steps)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert steps_of(records, "cuda:0", lambda one: one.category) == ()


def test_of_too_many_storages_the_largest_are_kept() -> None:
    log = StepLog()
    for number in range(peak_steps.MAX_LOGGED + 10):
        log.add(record(number + 1, number + 1, 0))
    assert len(log.records) < peak_steps.MAX_LOGGED
    assert log.records[-1].bytes == peak_steps.MAX_LOGGED + 10
    assert min(one.bytes for one in log.records) > peak_steps.MAX_LOGGED // 3

"""Verdicts on counters, from readings fed in."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.adapters.probe_protocol import HostGrowth
from pytest_gpuleak.engine.confirm.counter_evidence import CounterEvidence
from pytest_gpuleak.engine.judge.counters import (
    ARRAY_OBJECTS,
    CounterRun,
    HostLimits,
    explained,
    judge_counters,
    moved,
    suspects,
)
from pytest_gpuleak.model.evidence import Evidence, Survivor
from pytest_gpuleak.model.findings import NOT_READ, Autograd, Contribution, Finding, Holder
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.model.readings import HOST, OUTSIDE, OUTSIDE_FLOOR, ArrayReading, Growth
from pytest_gpuleak.model.source_files import Origin

MIB = 2**20
HEAP = {"heap": HostLimits(judges=True, floor=0)}
NOTHING = Evidence((), (frozenset(),))


def device_runs(*sizes: int, first_used: bool = False, metric: str = "requested") -> list[CounterRun]:
    used = frozenset({"cuda:0"}) if first_used else frozenset()
    return [CounterRun(Growth({("cuda:0", "allocated"): size, ("cuda:0", metric): size}, used)) for size in sizes]


def host_runs(*sizes: int, name: str = "heap") -> list[CounterRun]:
    runs = [CounterRun(Growth({(HOST, name): sizes[0]}))]
    return runs + [CounterRun(Growth({(HOST, name): size}), {name: HostGrowth(size)}) for size in sizes[1:]]


def survivors(device: str, *runs: int, size: int = MIB) -> tuple[Survivor, ...]:
    return tuple(
        Survivor(run, ArrayReading(index, (size,), "uint8", device, size, 100 + index, size))
        for index, run in enumerate(runs)
    )


def judge(runs: list[CounterRun], evidence: Evidence = NOTHING, policy: Policy = Policy()) -> tuple[Finding, ...]:  # noqa: B008 - frozen
    return judge_counters(runs, evidence, policy, HEAP)


def test_what_a_run_imported_excuses_it_only_where_it_is_not_run_again() -> None:
    """A leak in the test that imports a library first would be missed by that library's size."""
    first, again = host_runs(30 * MIB, 30 * MIB)
    imported = first.growth._replace(imported=25 * MIB)
    assert suspects(imported, {}, Policy(), HEAP) == {HOST}
    assert suspects(imported, {}, Policy(confirm=0), HEAP) == set()
    assert suspects(imported, {}, Policy(confirm=0, host_bytes=4 * MIB), HEAP) == {HOST}
    (found,) = judge([dataclasses.replace(first, growth=imported), again])
    assert found.failed
    assert found.bytes == 30 * MIB


@pytest.mark.slow
def test_the_objects_of_very_many_arrays_are_no_growth_of_their_own() -> None:
    count = 100_000
    arrays = survivors("cuda:0", *[0] * count, *[1] * count, size=8)
    both = Evidence(arrays, (frozenset(range(count)), frozenset(range(2 * count))))
    assert judge(host_runs(38 * MIB, 41 * MIB), both) == ()
    (found,) = judge(host_runs(150 * MIB, 150 * MIB), both)
    assert found.bytes == 150 * MIB - ARRAY_OBJECTS * count
    first, _ = host_runs(38 * MIB, 41 * MIB)
    assert suspects(first.growth, {HOST: ARRAY_OBJECTS * count}, Policy(), HEAP) == set()


@pytest.mark.parametrize("sizes", [(512, 512), (512, 700, 512), (40 * MIB, 40 * MIB)])
def test_bytes_that_grow_on_every_run_fail_however_few(sizes: tuple[int, ...]) -> None:
    (found,) = judge(device_runs(*sizes))
    assert (found.kind, found.failed, found.bytes, found.metric) == ("unattributed", True, sizes[0], "allocated")
    assert found.bytes_per_run == round(sum(sizes[1:]) / len(sizes[1:]))


@pytest.mark.parametrize(
    ("sizes", "failed"), [((16 * MIB, 0), True), ((MIB, -MIB), True), ((MIB - 1, 0), None), ((3 * MIB, MIB, 0), True)]
)
def test_what_was_left_once_fails_from_the_retained_limit_up(sizes: tuple[int, ...], failed: bool | None) -> None:
    found = judge(device_runs(*sizes))
    assert [one.failed for one in found] == ([] if failed is None else [failed])
    assert all(one.bytes_per_run == 0 for one in found)


def test_counters_may_begin_with_the_run_that_has_set_fixtures_up_again() -> None:
    arrays = survivors("cuda:0", 1, 2, size=4 * MIB)
    runs = Evidence(arrays, (frozenset(), frozenset({0}), frozenset({0, 1})), rebuilds=True)
    (found,) = judge(device_runs(6 * MIB, 6 * MIB), runs)
    assert (found.kind, found.bytes, found.bytes_per_run) == ("unattributed", 2 * MIB, 2 * MIB)


@pytest.mark.parametrize(
    ("size", "allocated", "said"),
    [
        (3 * MIB, 4 * MIB, []),  # a free block of 4 MiB is not split for 3 MiB
        (3 * MIB, 4 * MIB + 512, [MIB + 512]),
        (MIB, 2 * MIB, [MIB]),  # blocks of the small pool are
        (513, 1024, []),
    ],
)
def test_what_a_block_is_larger_than_its_array_is_no_growth(size: int, allocated: int, said: list[int]) -> None:
    evidence = Evidence(survivors("cuda:0", 0, size=size), (frozenset({0}),))
    found = judge(device_runs(allocated, metric="reserved"), evidence, Policy(confirm=0))
    assert [one.bytes for one in found] == said
    # With a count of requested bytes nothing is rounded.
    (exact,) = judge(device_runs(allocated), evidence, Policy(confirm=0))
    assert exact.bytes == allocated - size


class Storages:
    """What the last run left, as `Runs` tells it."""

    def __init__(self, *left: Survivor) -> None:
        self.left = left

    def moved(self) -> tuple[tuple[Survivor, ...], tuple[Survivor, ...]]:
        return self.left, ()


@pytest.mark.parametrize(("metric", "room"), [("reserved", {}), ("requested", {"cuda:0": 511})])
def test_the_rest_of_an_arrays_own_block_is_no_room_for_another_tests_array(metric: str, room: dict[str, int]) -> None:
    evidence: Any = object.__new__(CounterEvidence)
    evidence._suspect = SimpleNamespace(policy=Policy())
    (run,) = device_runs(1024, metric=metric)
    evidence._left = Storages(*survivors("cuda:0", 0, size=513))
    assert evidence._room(run.growth) == room


def test_requested_bytes_that_lag_behind_are_no_growth() -> None:
    freed = Growth({("cuda:0", "allocated"): 0})
    before = Growth({("cuda:0", "allocated"): 4096, ("cuda:0", "requested"): 4000})
    assert before.lowest(freed).of("cuda:0") == 0
    assert before.lowest(Growth({("cuda:0", "allocated"): 4096})).of("cuda:0") == 4000
    assert before.lowest(Growth({("cuda:0", "allocated"): 512, ("cuda:0", "requested"): 8})).of("cuda:0") == 8


def test_the_first_use_of_a_device_is_no_leak_unless_it_grows() -> None:
    (noted,) = judge(device_runs(8 * MIB, 0, first_used=True))
    assert not noted.failed
    assert "first to use cuda:0" in noted.evidence[-1]
    (grown,) = judge(device_runs(8 * MIB, MIB, first_used=True))
    assert grown.failed


def test_bytes_are_not_judged_where_tensors_alone_are_named() -> None:
    (found,) = judge(device_runs(MIB, MIB), policy=Policy(growing_bytes=None))
    assert not found.failed


def test_a_limit_in_bytes() -> None:
    (under,) = judge(device_runs(MIB, MIB), policy=Policy(growing_bytes=MIB))
    (over,) = judge(device_runs(MIB + 1, MIB + 1), policy=Policy(growing_bytes=MIB))
    assert (under.failed, over.failed) == (False, True)


def test_without_a_re_run_it_is_judged_as_retained_or_strictly_if_asked() -> None:
    assert judge(device_runs(512)) == ()
    assert judge(device_runs(2 * MIB))[0].failed
    assert judge(device_runs(512), policy=Policy(confirm=0))[0].failed


def test_tensors_account_for_their_part() -> None:
    evidence = Evidence(survivors("cuda:0", 0, 1), (frozenset({0}), frozenset({0, 1})))
    assert judge(device_runs(MIB, MIB), evidence) == ()
    (found,) = judge(device_runs(MIB + 512, MIB + 512), evidence)
    assert found.bytes == 512
    assert "tensors that Python sees hold 1.0 MiB" in found.evidence[-1]


def test_a_tensor_that_took_another_s_place_adds_nothing() -> None:
    evidence = Evidence(survivors("cuda:0", 0, 1), (frozenset({0}), frozenset({1})))
    assert [explained(*moved(evidence, run))["cuda:0"] for run in (0, 1, 2)] == [MIB, 0, 0]
    assert judge(device_runs(MIB, 0), evidence) == ()


def test_what_a_graph_retains_is_its_own_finding_s() -> None:
    evidence = Evidence(survivors("cuda:0", 0, 1, size=4), (frozenset({0}), frozenset({0, 1})))
    evidence = dataclasses.replace(evidence, graphs={("cuda:0", "", ""): Autograd(3, 2, MIB)})
    assert judge(device_runs(MIB + 4, MIB + 4), evidence) == ()


def test_why_the_allocator_has_no_history_is_told_with_the_device_s_growth() -> None:
    first, again = device_runs(9 * MIB, 9 * MIB)
    (found,) = judge([first, dataclasses.replace(again, no_history={"cuda:0": "being recorded by somebody else"})])
    assert found.judged is not None
    assert (found.judged.why_no_line, found.judged.cut) == ("being recorded by somebody else", "")
    assert found.failed
    (other,) = judge([first, dataclasses.replace(again, no_history={"cuda:1": "being recorded by somebody else"})])
    assert other.judged is None


LEFT_A_LOSS = Evidence(survivors("cuda:0", 0, 1, size=4), (frozenset({0}), frozenset({0, 1})))


@pytest.mark.parametrize("graph", [Autograd(500, 2, MIB, cut=True), NOT_READ])
@pytest.mark.parametrize("where", ["cuda:0", "cpu"])
def test_growth_that_a_graph_may_explain_fails_nothing_where_the_graph_was_not_counted(
    graph: Autograd, where: str
) -> None:
    cut = dataclasses.replace(LEFT_A_LOSS, graphs={(where, "", ""): graph})
    for runs in (device_runs(9 * MIB, 9 * MIB), host_runs(30 * MIB, 30 * MIB), device_runs(9 * MIB, 0)):
        (found,) = judge(runs, cut)
        assert not found.failed
        assert "autograd graph" in found.evidence[-1]
        assert "could not be counted to its end" in found.evidence[-1]
        assert found.judged is not None
        assert found.judged.cut == found.evidence[-1]


@pytest.mark.parametrize("graphs", [{}, {("cuda:0", "", ""): Autograd(500, 2, MIB)}])
def test_growth_beyond_a_graph_that_was_counted_fails(graphs: dict[Any, Autograd]) -> None:
    evidence = dataclasses.replace(LEFT_A_LOSS, graphs=graphs)
    for runs in (device_runs(9 * MIB, 9 * MIB), host_runs(30 * MIB, 30 * MIB), device_runs(9 * MIB, 0)):
        (found,) = judge(runs, evidence)
        assert found.failed
        assert "fails nothing" not in " ".join(found.evidence)


@pytest.mark.parametrize(("not_read", "failed"), [("cuda:0", False), ("cuda:1", True)])
def test_growth_that_unread_gradients_may_be_fails_nothing_where_they_could_not_be_listed(
    not_read: str, failed: bool
) -> None:
    runs = [dataclasses.replace(run, not_read=frozenset({not_read})) for run in device_runs(9 * MIB, 9 * MIB)]
    (found,) = judge(runs)
    assert found.failed is failed
    assert ("never read in Python could not be listed" in found.evidence[-1]) is not failed


@pytest.mark.parametrize(("not_read", "failed"), [("cpu", False), ("cuda:0", True)])
def test_the_same_of_the_host(not_read: str, failed: bool) -> None:
    runs = [dataclasses.replace(run, not_read=frozenset({not_read})) for run in host_runs(30 * MIB, 30 * MIB)]
    (found,) = judge(runs)
    assert found.failed is failed


def test_a_cut_anywhere_excuses_no_growth_outside_torch() -> None:
    cut = dataclasses.replace(LEFT_A_LOSS, graphs={("cuda:0", "", ""): NOT_READ})
    runs = [CounterRun(Growth({("cuda:0", OUTSIDE): 2 * OUTSIDE_FLOOR})) for _ in range(2)]
    (found,) = judge(runs, cut)
    assert (found.metric, found.failed) == ("outside torch", True)


def test_arrays_that_were_not_evaluated_are_named_for_the_inputs_that_they_keep() -> None:
    holder = Holder("module", "app.LOSSES", "app.LOSSES[0]")
    lazy = tuple(
        one._replace(holder=holder, reading=one.reading._replace(pending=True, storage_bytes=0))
        for one in survivors("mlx", 0, 1)
    )
    runs = [CounterRun(Growth({("mlx", "allocated"): MIB})) for _ in lazy]
    (found,) = judge(runs, Evidence(lazy, (frozenset({0}), frozenset({0, 1}))))
    assert (found.kind, found.failed, found.bytes_per_run, found.holder) == ("unattributed", True, MIB, holder)
    assert "2 are alive" in found.evidence[1]
    (found,) = judge(runs, Evidence(survivors("mlx", 0, 1, size=4), (frozenset({0}), frozenset({0, 1}))))
    assert found.holder is None


def test_rounding_is_allowed_for_where_requests_are_not_counted() -> None:
    evidence = Evidence(survivors("cuda:0", 0, 1, size=4), (frozenset({0}), frozenset({0, 1})))
    assert judge(device_runs(512, 512, metric="reserved"), evidence) == ()
    assert suspects(device_runs(512, metric="reserved")[0].growth, {"cuda:0": 4}, Policy(), {}) == set()


def test_the_blocks_of_the_last_run_are_told_with_their_line() -> None:
    runs = device_runs(MIB, MIB)
    line = Origin("tests/test_x.py", 3, "test_leak", "pool = raw_alloc(2**20)")
    runs[1] = dataclasses.replace(runs[1], blocks={"cuda:0": (Contribution("blocks", MIB, 1, line),)})
    (found,) = judge(runs)
    assert found.contributions[0].created == line
    (other,) = judge(device_runs(MIB, MIB))
    assert found.fingerprint != other.fingerprint


def test_reserved_memory_is_judged_only_if_asked() -> None:
    run = CounterRun(Growth({("cuda:0", "allocated"): 0, ("cuda:0", "reserved"): 20 * MIB}))
    assert judge([run]) == ()
    (found,) = judge([run], policy=Policy(reserved_bytes=20 * MIB))
    assert (found.failed, found.metric, found.bytes) == (True, "reserved", 20 * MIB)
    assert judge([run], policy=Policy(reserved_bytes=20 * MIB + 1)) == ()


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ((24 * MIB, 24 * MIB), True),
        ((24 * MIB, 11 * MIB, 12 * MIB), True),
        ((24 * MIB, 0), False),  # an import, a cache
        ((24 * MIB, 24 * MIB, 0), False),
        ((9 * MIB, 24 * MIB), False),
        ((24 * MIB,), False),  # could not be run again
    ],
)
def test_host_memory_fails_where_every_run_is_over_the_limit(sizes: tuple[int, ...], found: bool) -> None:
    findings = judge(host_runs(*sizes))
    assert [(one.kind, one.failed, one.metric) for one in findings] == ([("host", True, "heap")] if found else [])


def test_a_probe_that_is_evidence_alone_gives_a_note() -> None:
    (found,) = judge_counters(
        host_runs(24 * MIB, 24 * MIB, name="rss"), NOTHING, Policy(), {"rss": HostLimits(judges=False, floor=0)}
    )
    assert not found.failed


def test_the_floor_of_a_probe_counts_where_it_is_over_the_limit() -> None:
    limits = {"heap": HostLimits(judges=True, floor=30 * MIB)}
    assert judge_counters(host_runs(24 * MIB, 24 * MIB), NOTHING, Policy(), limits) == ()


def test_tensors_on_the_cpu_are_no_host_finding() -> None:
    evidence = Evidence(survivors("cpu", 0, 1, size=24 * MIB), (frozenset({0}), frozenset({0, 1})))
    assert judge(host_runs(24 * MIB, 24 * MIB), evidence) == ()


def test_the_host_s_parts_come_from_the_probe_that_can_tell() -> None:
    parts = (Contribution("bytearray", 24 * MIB),)
    growth = Growth({(HOST, "heap"): 24 * MIB, (HOST, "tracemalloc"): 24 * MIB})
    again = CounterRun(growth, {"heap": HostGrowth(24 * MIB), "tracemalloc": HostGrowth(24 * MIB, parts)})
    limits = {name: HostLimits(judges=True, floor=0) for name in ("heap", "tracemalloc")}
    (found,) = judge_counters([CounterRun(growth), again], NOTHING, Policy(), limits)
    assert (found.metric, found.contributions, len(found.evidence)) == ("heap", parts, 2)


@pytest.mark.slow
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=4), st.booleans())
def test_any_readings_are_judged_without_an_error(sizes: list[int], host: bool) -> None:
    runs = host_runs(*sizes) if host else device_runs(*sizes)
    for found in judge(runs):
        assert found.bytes > 0
        assert found.bytes_per_run >= 0

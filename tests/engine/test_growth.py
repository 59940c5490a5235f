"""The runs of a suspect compared: who grows, who was replaced, and at what cost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.engine.judge.arrays import judge
from pytest_gpuleak.engine.judge.growth import compare_runs
from pytest_gpuleak.model.evidence import Evidence, Survivor
from pytest_gpuleak.model.findings import Holder
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.model.readings import ArrayReading
from pytest_gpuleak.model.source_files import Origin
from tests.support.calls import count_calls

if TYPE_CHECKING:
    from pytest_gpuleak.model.evidence import Keeper
    from pytest_gpuleak.model.findings import HolderKind


MIB = 2**20


def survivor(run: int, root: str | None, size: int = 100, kind: HolderKind = "module", device: str = "cpu") -> Survivor:
    reading = ArrayReading(0, (size,), "uint8", device, size, 0, size)
    if root is None:
        return Survivor(run, reading)
    return Survivor(run, reading, holder=Holder(kind, root, root + "[0]"), pattern=root + "[*]")


def evidence(survivors: list[Survivor], *alive: set[int]) -> Evidence:
    return Evidence(tuple(survivors), tuple(frozenset(indices) for indices in alive))


def kinds(found: Evidence) -> dict[str, str]:
    return {group.members[0].root[2]: group.kind for group in compare_runs(found)}


@pytest.mark.parametrize("keeper", ["item", "frames"])
@pytest.mark.parametrize("re_runs", [1, 2])
def test_what_the_runner_keeps_was_replaced_by_the_re_runs_array(keeper: Keeper, re_runs: int) -> None:
    # 0: on the first instance, and in a store that each run empties; the re-runs' arrays are in the store alone.
    survivors = [survivor(run, "store" if run else "instance") for run in range(re_runs + 1)]
    found = evidence(survivors, {0}, *({0, run} for run in range(1, re_runs + 1)))
    if re_runs == 1:
        assert "growing" in kinds(found).values()
    assert kinds(dataclasses.replace(found, kept={0: keeper})) == {"store": "retained"}


@pytest.mark.parametrize("sizes", [(100, 100), (300, 300), (300, 100)])
@pytest.mark.parametrize("keys", [("[*]", "[*]"), ("['run0']", "['run1']")])
def test_a_container_grows_beside_what_the_runner_keeps(sizes: tuple[int, int], keys: tuple[str, str]) -> None:
    # 0: on the first instance alone. 1 and 2: in a container to which each run adds.
    added = [survivor(run, "list", sizes[run])._replace(pattern=f"list{keys[run]}") for run in (0, 1)]
    found = evidence([survivor(0, "instance"), *added], {0, 1}, {0, 1, 2})
    found = dataclasses.replace(found, kept={0: "item"}, kept_before=frozenset({0}))
    assert kinds(found) == {"instance": "retained", "list": "growing"}


def test_another_entry_of_a_store_that_stays_is_no_growth() -> None:
    # 0: on the first instance, and emptied from the store by the re-run, which has 2 there. 1: stays in the store.
    survivors = [
        survivor(0, "instance"),
        survivor(0, "store", 300)._replace(pattern="store['table']"),
        survivor(1, "store")._replace(pattern="store['model']"),
    ]
    found = evidence(survivors, {0, 1}, {0, 1, 2})
    assert set(kinds(dataclasses.replace(found, kept={0: "item"})).values()) == {"retained"}


def test_without_holders_what_grows_beside_what_the_runner_keeps_is_growth() -> None:
    survivors = [survivor(run, None) for run in (0, 0, 1)]
    found = evidence(survivors, {0, 1}, {0, 1, 2})
    groups = compare_runs(dataclasses.replace(found, kept={0: "item"}, kept_before=frozenset({0})))
    assert {group.kind: len(group.members) for group in groups} == {"growing": 1, "retained": 1}


def test_what_the_item_keeps_stays_and_what_frames_keep_goes() -> None:
    found = evidence([survivor(0, "instance")], {0}, {0})
    assert kinds(found) == {"instance": "retained"}
    assert kinds(dataclasses.replace(found, kept={0: "item"})) == {"instance": "retained"}
    assert kinds(dataclasses.replace(found, kept={0: "frames"})) == {}


def test_the_holder_of_what_stays_is_named_and_not_that_of_the_latest() -> None:
    # A wider fixture refers to its latest user: after the re-run it holds the new weights, the log those before.
    members = [survivor(0, "LOG"), survivor(1, "service", kind="fixture")]
    assert kinds(evidence(members, {0}, {0, 1})) == {"LOG": "growing"}


def test_the_holder_of_what_stays_is_named_over_several_runs() -> None:
    members = [survivor(0, "LOG"), survivor(1, "LOG"), survivor(2, "service", kind="fixture")]
    assert kinds(evidence(members, {0}, {0, 1}, {0, 1, 2})) == {"LOG": "growing"}


@pytest.mark.parametrize("known", [True, False])
def test_a_list_grows_beside_a_model_that_keeps_more_and_replaces_one(known: bool) -> None:
    # 0: a hidden state, which the re-run has replaced. 1 and 2: a gradient and an optimizer's, which stay. 3: in the list.
    left = ["model.state", "model.grad", "model.momentum", "KEPT[*]", "model.state", "KEPT[*]"]
    members = [
        survivor(0 if index < 4 else 1, "KEPT" if "KEPT" in place else "model")._replace(pattern=place)
        for index, place in enumerate(left)
    ]
    if not known:  # it was freed before the search for holders
        members[0] = survivor(0, None)
    assert kinds(evidence(members, {0, 1, 2, 3}, {1, 2, 3, 4, 5})) == {"KEPT": "growing", "model": "retained"}


def test_a_cache_beside_a_list_that_grows_unevenly_is_not_named() -> None:
    members = [survivor(0, "LIST"), survivor(0, "CACHE"), survivor(1, "LIST"), survivor(1, "LIST")]
    assert kinds(evidence(members, {0, 1}, {0, 1, 2, 3})) == {"LIST": "growing", "CACHE": "retained"}


def test_a_holder_that_was_not_found_names_nobody() -> None:
    members = [survivor(0, "unknown", kind="unknown"), survivor(1, "LIST")]
    assert kinds(evidence(members, {0}, {0, 1}))["LIST"] == "growing"


def test_a_small_cache_beside_a_large_one_is_a_note() -> None:
    members = [survivor(0, "MODEL", 4 * MIB), survivor(0, "window", 4096)]
    found = judge(evidence(members, {0, 1}, {0, 1}), Policy())
    assert {one.holder.root: one.failed for one in found if one.holder} == {"MODEL": True, "window": False}


def test_many_small_caches_that_add_up_fail() -> None:
    members = [survivor(0, f"CACHE_{'x' * number}", MIB // 16) for number in range(17)]
    everything = set(range(17))
    assert all(found.failed for found in judge(evidence(members, everything, everything), Policy()))


def _calls(count: int, *, replaced: bool) -> int:
    """Calls that judging a re-run takes which leaves `count` arrays more, or replaces as many."""
    members = [survivor(run, f"LIST_{index % 3}", index % 7) for run in (0, 1) for index in range(count)]
    first, second = set(range(count)), set(range(count, 2 * count))
    found = evidence(members, first, second if replaced else first | second)
    return count_calls(lambda: judge(found, Policy()))


@pytest.mark.slow
def test_ten_times_as_many_arrays_cost_ten_times_as_much() -> None:
    # Pairs compared would cost a hundred times as much: 10,000 tensors took minutes.
    for replaced in (False, True):
        assert _calls(5_000, replaced=replaced) < 12 * _calls(500, replaced=replaced)


def test_two_lists_whose_names_differ_by_a_number_both_grow() -> None:
    members = [survivor(run, name, size) for run in (0, 1) for name, size in (("LOSSES1", 100), ("LOSSES2", 300))]
    found = compare_runs(evidence(members, {0, 1}, {0, 1, 2, 3}))
    assert {group.members[0].root[2]: (group.kind, group.bytes_per_run) for group in found} == {
        "LOSSES1": ("growing", 100),
        "LOSSES2": ("growing", 300),
    }


def test_objects_that_each_run_numbers_are_one_root() -> None:
    members = [survivor(run, f"thread 'Thread-{run + 1}'") for run in (0, 1)]
    assert kinds(evidence(members, {0}, {0, 1})) == {"thread 'Thread-1'": "growing"}


def test_a_list_grows_beside_one_under_the_root_that_refers_to_the_latest() -> None:
    # 0: in a list of the service's, as 3. 1: in the log, as 2, to which the service refers as the latest.
    members = [
        survivor(0, "service")._replace(pattern="service.items[*]"),
        survivor(0, "LOG"),
        survivor(1, "service")._replace(pattern="service.current"),
        survivor(1, "service")._replace(pattern="service.items[*]"),
    ]
    found = compare_runs(evidence(members, {0, 1}, {0, 1, 2, 3}))
    assert {group.members[0].root[2]: (group.kind, group.bytes_per_run) for group in found} == {
        "service": ("growing", 100),
        "LOG": ("growing", 100),
    }


LINES = [Origin("test_a.py", number, "test_a", "") for number in (1, 2)]


@pytest.mark.parametrize(
    ("sizes", "lines", "told"),
    [
        ((200,), (0,), 0),  # of another size, and the only one that was made
        ((200, 300), (0, 0), 0),
        ((200, 300), (0, 1), None),  # by either line
        ((200, 300), (0, None), None),  # by C++, perhaps: a constant of TorchScript's beside the module's parameters
        ((200, 300), (None, 0), None),
        ((200, 100), (0, 1), 1),  # as large as that of the second line
        ((100, 100), (None, 1), 1),
    ],
)
def test_a_line_is_told_that_all_similar_arrays_of_the_traced_run_have(
    sizes: tuple[int, ...], lines: tuple[int | None, ...], told: int | None
) -> None:
    # The traced run is the third; C++ holds all.
    traced = [
        survivor(2, None, size)._replace(created=None if line is None else LINES[line])
        for size, line in zip(sizes, lines, strict=True)
    ]
    found = evidence([survivor(0, None), survivor(1, None), *traced], {0}, {0, 1})
    (group,) = compare_runs(dataclasses.replace(found, traced=2))
    assert [member.created for member in group.members] == [None if told is None else LINES[told]]

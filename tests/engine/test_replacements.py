"""What a re-run left replaces what died in it: how many it replaces depends on forms and sizes, never on names."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.engine.judge.replacements import compare, match_any, match_replacements
from pytest_gpuleak.model.evidence import Evidence, Survivor
from pytest_gpuleak.model.findings import Holder
from pytest_gpuleak.model.readings import ArrayReading


def reading(size: int, device: str = "cpu") -> ArrayReading:
    return ArrayReading(0, (size,), "uint8", device, size, 0, size)


def survivor(run: int, root: str | None, size: int = 100, device: str = "cpu") -> Survivor:
    if root is None:
        return Survivor(run, reading(size, device))
    return Survivor(run, reading(size, device), holder=Holder("module", root, root + "[0]"), pattern=root + "[*]")


def evidence(survivors: list[Survivor], *alive: set[int]) -> Evidence:
    return Evidence(tuple(survivors), tuple(map(frozenset, alive)))


DRAWN = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),
        st.sampled_from([1, 2]),
        st.sampled_from(["cpu", "cuda:0"]),
        st.sampled_from(["dead", "new", "staying"]),
    ),
    max_size=14,
)


@pytest.mark.slow
@given(DRAWN)
def test_names_choose_which_are_matched_and_not_how_many(drawn: list[tuple[str | None, int, str, str]]) -> None:
    named = [survivor(state == "new", root, size, device) for root, size, device, state in drawn]
    nameless = [survivor(state == "new", None, size, device) for _, size, device, state in drawn]
    dead, new, staying = (
        [index for index, one in enumerate(drawn) if one[3] == wanted] for wanted in ("dead", "new", "staying")
    )
    matched = [match_replacements(dead, new, survivors, staying) for survivors in (named, nameless)]
    sizes = [Counter((named[by].reading.device, named[by].size) for by in one.values()) for one in matched]
    assert sizes[0] == sizes[1]
    least = Counter(drawn[index][1:3] for index in dead) & Counter(drawn[index][1:3] for index in new)
    assert len(matched[0]) == len(set(matched[0].values())) == least.total()


@pytest.mark.slow
@given(DRAWN)
def test_a_comparison_is_the_same_whatever_the_holders(
    drawn: list[tuple[str | None, int, str, str]],
) -> None:
    named = [survivor(int(state == "new"), root, size, device) for root, size, device, state in drawn]
    before = {index for index, one in enumerate(drawn) if one[3] != "new"}
    after = {index for index, one in enumerate(drawn) if one[3] != "dead"}
    comparisons = [
        compare(evidence(survivors, before, after))
        for survivors in (named, [one._replace(holder=None, pattern="") for one in named])
    ]
    assert [(one.grows, one.doubtful, list(map(len, one.added))) for one in comparisons[:1]] == [
        (one.grows, one.doubtful, list(map(len, one.added))) for one in comparisons[1:]
    ]


def test_what_nothing_replaces_grows() -> None:
    found = compare(evidence([survivor(0, None), survivor(1, None)], {0}, {0, 1}))
    assert found.grows
    assert found.added == ((1,),)


def test_what_is_replaced_one_for_one_does_not_grow() -> None:
    found = compare(evidence([survivor(0, None), survivor(1, None)], {0}, {1}))
    assert (found.grows, found.doubtful, found.replaced_by) == (False, False, {0: 1})


def test_what_a_collection_freed_leaves_a_doubt_that_a_run_from_a_settled_heap_clears() -> None:
    collected = dataclasses.replace(
        evidence([survivor(0, None), survivor(1, None)], {0}, {1}), collected={1: frozenset({0})}
    )
    assert compare(collected).doubtful
    survivors = [survivor(0, None), survivor(1, None), survivor(2, None)]
    replaced = dataclasses.replace(
        evidence(survivors, {0}, {1}, {2}), collected={1: frozenset({0})}, exact=frozenset({2})
    )
    assert not compare(replaced).grows
    grown = dataclasses.replace(
        evidence(survivors, {0}, {1}, {1, 2}), collected={1: frozenset({0})}, exact=frozenset({2})
    )
    assert compare(grown).grows


@pytest.mark.parametrize("size", [50, 200])
def test_another_size_leaves_a_doubt_and_replaces_where_it_does_so_again(size: int) -> None:
    survivors = [survivor(0, None, 100), survivor(1, None, size), survivor(2, None, 100 + size)]
    assert compare(evidence(survivors[:2], {0}, {1})).doubtful
    again = dataclasses.replace(evidence(survivors, {0}, {1}, {2}), exact=frozenset({2}))
    assert not compare(again).grows
    grown = dataclasses.replace(evidence(survivors, {0}, {1}, {1, 2}), exact=frozenset({2}))
    assert compare(grown).grows


def slots(sizes: list[list[int]], exact: set[int]) -> Evidence:
    """Slots whose arrays each run replaces by others: `sizes` by run."""
    survivors = [survivor(run, None, size) for run, of_run in enumerate(sizes) for size in of_run]
    alive = [{index for index, one in enumerate(survivors) if one.run == run} for run in range(len(sizes))]
    return dataclasses.replace(evidence(survivors, *alive), exact=frozenset(exact))


@given(st.lists(st.integers(1, 6), min_size=4, max_size=4), st.sampled_from([{1, 2, 3}, {2, 3}]))
def test_a_slot_grows_where_each_run_adds_as_many_bytes(sizes: list[int], exact: set[int]) -> None:
    rises = [after - before for before, after in itertools.pairwise(sizes)]
    found = compare(slots([[size] for size in sizes], exact))
    assert found.grows is (rises[0] > 0 and len(set(rises)) == 1)
    assert found.excess == ({3: rises[0]} if found.grows else {})


@pytest.mark.parametrize("exact", [{1, 2, 3}, {2, 3}])
def test_a_slot_that_has_grown_so_far_leaves_a_doubt(exact: set[int]) -> None:
    sizes = [[100], [130], [160], [190]]
    assert [compare(slots(sizes[:runs], exact)).doubtful for runs in (2, 3, 4)] == [True, True, False]
    assert not compare(slots([[100], [130], [150]], exact)).doubtful


def test_several_slots_grow_each_by_its_own() -> None:
    found = compare(slots([[10, 500], [530, 11], [12, 560], [590, 13]], {2, 3}))
    assert (found.grows, sorted(found.excess.values())) == (True, [1, 30])


def test_a_slot_of_a_fixture_that_is_set_up_again_rises_from_then_on() -> None:
    in_fixture = slots([[], [130], [160], [190], [220]], {2, 3, 4})
    found = [
        compare(dataclasses.replace(in_fixture, alive=in_fixture.alive[:runs], rebuilds=True)) for runs in (3, 4, 5)
    ]
    assert [one.doubtful for one in found] == [True, True, False]
    assert (found[-1].grows, found[-1].excess) == (True, {3: 30})


def test_an_older_array_that_went_was_replaced() -> None:
    found = evidence([survivor(0, None), survivor(1, None)], {0}, {0, 1})
    assert not compare(dataclasses.replace(found, older_gone={1: (reading(100),)})).grows
    assert compare(dataclasses.replace(found, older_gone={1: (reading(100, "cuda:0"),)})).grows


@pytest.mark.parametrize("exact", [{2}, {1, 2}])
def test_older_arrays_that_go_in_the_first_re_run_alone_are_not_replaced(exact: set[int]) -> None:
    survivors = [survivor(0, None), survivor(1, None), survivor(2, None)]
    once = evidence(survivors[:2], {0}, {0, 1})
    once = dataclasses.replace(once, older_gone={1: (reading(100), reading(100))}, exact=frozenset(exact))
    assert compare(once).doubtful
    again = dataclasses.replace(once, survivors=tuple(survivors), alive=(*once.alive, frozenset({0, 1, 2})))
    assert compare(again).grows
    buffer = compare(dataclasses.replace(again, older_gone={1: (reading(100),), 2: (reading(100),)}))
    assert not buffer.grows
    assert not buffer.doubtful


def test_the_re_run_that_sets_fixtures_up_again_is_compared_with_nothing() -> None:
    survivors = [survivor(0, None), survivor(1, None), survivor(1, None, 8), survivor(2, None, 8)]
    once = compare(dataclasses.replace(evidence(survivors[:3], {0}, {0, 1, 2}), rebuilds=True))
    assert (once.added, once.grows, once.fresh) == ((), False, (2,)), "one is like what the first run has left"
    slot = compare(dataclasses.replace(evidence(survivors, {0}, {0, 1, 2}, {0, 1, 3}), rebuilds=True))
    assert (slot.grows, slot.doubtful, slot.fresh) == (False, False, (2,))
    grown = compare(dataclasses.replace(evidence(survivors, {0}, {0, 1, 2}, {0, 1, 2, 3}), rebuilds=True))
    assert (grown.grows, grown.added) == (True, ((3,),))


def test_a_run_made_for_its_lines_decides_nothing() -> None:
    survivors = [survivor(0, None), survivor(1, None), survivor(2, None)]
    found = compare(dataclasses.replace(evidence(survivors, {0}, {1}, {1, 2}), traced=2))
    assert not found.grows
    found = compare(dataclasses.replace(evidence(survivors, {0}, {0, 1}, {0, 1}), traced=2))
    assert found.grows


def test_what_a_run_made_for_its_lines_replaced_waits_for_a_collection_and_is_told() -> None:
    replaced = [survivor(run, None) for run in range(3)]
    found = compare(dataclasses.replace(evidence(replaced, {0}, {1}, {1, 2}), traced=2))
    assert (found.extra, found.uncollected) == (frozenset(), frozenset({1}))
    # What grows beside it does not go, and so is not replaced.
    grows = [*replaced, *(survivor(run, None, size=7) for run in range(3))]
    found = compare(dataclasses.replace(evidence(grows, {0, 3}, {1, 3, 4}, {1, 2, 3, 4, 5}), traced=2))
    assert (found.extra, found.uncollected) == (frozenset({4, 5}), frozenset({1}))


def test_any_size_is_matched_on_its_own_device_alone() -> None:
    survivors = [survivor(0, None, 100), survivor(1, None, 7), survivor(1, None, 7, "cuda:0")]
    assert match_any([0], [1, 2], survivors) == {0: 1}


def test_what_a_re_run_left_where_nothing_has_gone_is_extra() -> None:
    survivors = [survivor(run, None) for run in range(3)]
    assert compare(evidence(survivors, {0}, {0, 1}, {0, 1, 2})).extra == {1, 2}
    assert compare(evidence(survivors, {0}, {1}, {2})).extra == frozenset()
    # Extra is what takes the place of what was extra.
    assert compare(evidence(survivors, {0}, {0, 1}, {0, 2})).extra == {1, 2}
    full = dataclasses.replace(evidence(survivors[:2], {0}, {0, 1}), older_gone={1: (reading(100),)})
    assert compare(full).extra == frozenset()


def test_what_the_runner_keeps_is_let_go_by_the_re_run_unless_it_kept_it_alone_before() -> None:
    # 0: on the first instance. 1: in a list. 2: in the list, or in a slot that 0 was in too.
    found = dataclasses.replace(
        evidence([survivor(0, None), survivor(0, None), survivor(1, None)], {0, 1}, {0, 1, 2}), kept={0: "item"}
    )
    assert not compare(found).grows
    assert compare(found).extra == {2}
    assert compare(dataclasses.replace(found, kept_before=frozenset({0}))).grows

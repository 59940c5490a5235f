"""The judge of arrays that the collector does not track."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.engine.judge.untracked import UntrackedRuns, added_by_record, judge_cut, judge_untracked
from pytest_gpuleak.model.evidence import Survivor
from pytest_gpuleak.model.findings import Finding, Holder, HolderKind, PathStep
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.model.readings import ArrayReading

if TYPE_CHECKING:
    from random import Random

MIB = 2**20
POLICY = Policy()


def left(
    size: int,
    root: str = "app.KEPT",
    edge: str = "[0]",
    kind: HolderKind = "module",
    storage: int = 1,
    file: str | None = None,
) -> Survivor:
    reading = ArrayReading(storage, (size,), "uint8", "cpu", size, storage, size, framework="numpy")
    return Survivor(1, reading, holder=Holder(kind, root, root + edge, (PathStep(edge, "list"),), file))


def judged(runs: UntrackedRuns, *, frames_count: bool = False) -> list[tuple[str, str, int, bool]]:
    runs.survivors = tuple(one._replace(run=int(runs.grows)) for one in runs.survivors)
    found: tuple[Finding, ...] = judge_untracked(runs, POLICY, frames_count=frames_count)
    return [(one.kind, one.holder.root if one.holder else "", one.bytes, one.failed) for one in found]


def test_what_a_recorded_run_adds_grows() -> None:
    runs = UntrackedRuns((left(MIB), left(MIB, storage=2)), grows=True)
    assert judged(runs) == [("growing", "app.KEPT", 2 * MIB, True)]
    assert added_by_record(runs, POLICY, frames_count=False)[1] == 2 * MIB


def test_growth_up_to_the_limit_is_none() -> None:
    runs = UntrackedRuns((left(POLICY.array_bytes),), grows=True)
    assert judged(runs) == []
    assert added_by_record(runs, POLICY, frames_count=False) == ([], 0)
    assert judged(UntrackedRuns((left(POLICY.array_bytes + 1),), grows=True))[0][3]


def test_what_replaces_memory_of_its_size_does_not_grow() -> None:
    replaced = left(MIB, "app.LAST", ".data")
    runs = UntrackedRuns((replaced, left(MIB, storage=2)), gone=Counter([MIB]), grows=True)
    assert judged(runs) == [("growing", "app.KEPT", MIB, True)]
    assert judged(UntrackedRuns((replaced,), gone=Counter([MIB]), grows=True)) == []


def test_what_takes_the_place_of_smaller_memory_grows_by_the_difference() -> None:
    table, item = left(4 * MIB, "app.TABLE", ".data"), left(MIB, storage=2)
    runs = UntrackedRuns((table, item), gone=Counter({3 * MIB: 1, 10: 5}), grows=True)
    found = judge_untracked(runs, POLICY, frames_count=False)
    assert [(one.bytes, one.bytes_per_run) for one in found] == [(4 * MIB, MIB), (MIB, MIB)]


def test_small_growth_beside_large_growth_is_a_note() -> None:
    runs = UntrackedRuns((left(16 * MIB), left(1000, "lib.CACHE", storage=2)), grows=True)
    assert judged(runs) == [("growing", "app.KEPT", 16 * MIB, True), ("growing", "lib.CACHE", 1000, False)]


def test_local_variables_of_running_frames_count_where_they_are_the_users() -> None:
    runs = UntrackedRuns((left(MIB, "frame", kind="frame"),), grows=True)
    assert judged(runs) == []
    assert judged(runs, frames_count=True) == [("growing", "frame", MIB, True)]


def test_residue_fails_by_its_size() -> None:
    assert judged(UntrackedRuns((left(MIB),))) == [("retained", "app.KEPT", MIB, True)]
    assert judged(UntrackedRuns((left(MIB - 1),))) == [("retained", "app.KEPT", MIB - 1, False)]
    assert judged(UntrackedRuns((left(MIB),), confirmed=False)) == [("unconfirmed", "app.KEPT", MIB, True)]


def test_residue_of_a_library_is_a_note() -> None:
    runs = UntrackedRuns((left(MIB, "lib.TABLE", file="/site-packages/lib.py"),))
    runs.libraries = frozenset(("/site-packages/lib.py",))
    assert judged(runs) == [("retained", "lib.TABLE", MIB, False)]


def test_the_tables_of_a_module_that_was_imported_are_no_residue() -> None:
    survivors = (left(MIB, "tables.TABLE"), left(MIB, "tables_of_mine.TABLE", storage=2))
    assert judged(UntrackedRuns(survivors, imported=("tables",))) == [("retained", "tables_of_mine.TABLE", MIB, True)]


def test_what_a_wider_fixture_alone_holds_is_a_note_while_it_is_set_up() -> None:
    held = left(MIB, "fixture 'data'", kind="fixture")
    for up, failed in ((frozenset({"fixture 'data'"}), False), (frozenset({"fixture 'other'"}), True)):
        assert judged(UntrackedRuns((held,), up=up)) == [("retained", "fixture 'data'", MIB, failed)]
    held = held._replace(others=(Holder("module", "app.KEPT", "app.KEPT[0]", (PathStep("[0]", "list"),)),))
    assert judged(UntrackedRuns((held,), up=frozenset({"fixture 'data'"}))) == [
        ("retained", "fixture 'data'", MIB, True)
    ]


def test_memory_without_a_holder_is_blamed_only_where_the_run_surely_left_it() -> None:
    nameless = left(MIB, "nothing", kind="unknown", storage=7)
    assert judged(UntrackedRuns((nameless,))) == []
    assert judged(UntrackedRuns((nameless,), sure=frozenset((7,)))) == [("retained", "nothing", MIB, True)]


def test_what_a_cut_walk_leaves_unknown_is_a_note() -> None:
    (note,) = judge_cut([3 * MIB, 2 * MIB], "heap")
    assert (note.kind, note.failed, note.bytes, note.bytes_per_run) == ("host", False, 3 * MIB, 0)
    assert note.evidence == (
        "heap, run by run: +3.0 MiB, +2.0 MiB",
        "whether arrays explain this is unknown: the walk over the heap for them was cut at its bound",
    )


PLACES: list[tuple[str, str, HolderKind]] = [
    ("app.KEPT", "[0]", "module"),
    ("app.LAST", ".data", "module"),
    ("app.OTHER", "[0][1]", "module"),
    ("frame", ".x", "frame"),
    ("nothing", "", "unknown"),
]
SIZES = st.sampled_from([1000, MIB // 4, MIB, 16 * MIB])


@given(
    st.lists(st.tuples(SIZES, st.sampled_from(PLACES)), max_size=8),
    st.lists(SIZES, max_size=4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_arrays_are_met_changes_no_verdict(
    arrays: list[tuple[int, tuple[str, str, HolderKind]]],
    gone: list[int],
    grows: bool,
    random: Random,
) -> None:
    survivors = [
        left(size, root, edge, kind, storage) for storage, (size, (root, edge, kind)) in enumerate(arrays, start=1)
    ]
    shuffled = random.sample(survivors, len(survivors))
    verdicts = [
        judged(UntrackedRuns(tuple(some), gone=Counter(gone), grows=grows, sure=frozenset(range(0, 9, 2))))
        for some in (survivors, shuffled)
    ]
    assert sorted(verdicts[0]) == sorted(verdicts[1])

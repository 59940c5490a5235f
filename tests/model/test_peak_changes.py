"""What has changed between two peaks: rows that differ add up to the growth, whatever lines have moved."""

from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.model.peak_changes import (
    KnownPeak,
    PeakRow,
    changed_peaks,
    compare_rows,
    describe_row_change,
    known_peak,
)
from pytest_gpuleak.model.peak_parts import Peak, PeakPart
from pytest_gpuleak.model.source_files import Origin

MIB = 2**20
ROWS = st.lists(
    st.builds(
        PeakRow,
        st.sampled_from(["activation", "temporary", "smaller"]),
        st.integers(0, 2**40),
        st.integers(0, 3),
        st.sampled_from(["", "float32 [2, 3]", "float32 [4, 3]"]),
        st.sampled_from(["", "a.py:1 in f", "a.py:2 in f", "b.py:1 in g"]),
        st.sampled_from(["", "Net.a", "Net.*"]),
    ),
    max_size=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(ROWS, ROWS)
def test_the_rows_that_differ_add_up_to_the_growth(old: list[PeakRow], new: list[PeakRow]) -> None:
    changes = compare_rows(old, new)
    assert sum(change.grown for change in changes) == sum(row.bytes for row in new) - sum(row.bytes for row in old)
    assert [change.grown for change in changes] == sorted((change.grown for change in changes), reverse=True)
    assert all(change.grown for change in changes)
    assert all(describe_row_change(change) for change in changes)
    moved = [dataclasses.replace(row, place=row.place.replace(":", ":10")) for row in old]
    assert compare_rows(old, moved) == []


def test_rows_are_matched_by_what_is_likest() -> None:
    row = PeakRow("activation", 4 * MIB, 1, "float32 [1024, 1024]", "model.py:10 in forward", "Net.body.*")
    more = dataclasses.replace(row, bytes=8 * MIB, count=2, place="model.py:11 in forward")
    other = dataclasses.replace(row, bytes=2 * MIB, form="float32 [512, 1024]", place="model.py:10 in other")
    (change,) = compare_rows([row, other], [other, more])
    assert (change.old, change.new) == (row, more)
    assert describe_row_change(change) == "1 x float32 [1024, 1024] -> 2 x"
    (new, gone) = compare_rows([other], [dataclasses.replace(row, category="held")])
    assert (describe_row_change(new), describe_row_change(gone)) == (
        "new: 1 x float32 [1024, 1024]",
        "gone: 1 x float32 [512, 1024]",
    )


def test_a_peak_is_known_by_its_type_of_device_and_its_rows_add_up() -> None:
    part = PeakPart("held", "Net|a", 5, 1, "float32", (5,), Origin("a.py", 3, "f", ""))
    peak = Peak("cuda:1", 9, None, (part, PeakPart("smaller", "", 1, 2, note="...")), 3)
    known = known_peak("test_a", peak)
    assert (known.device, known.bytes, sum(row.bytes for row in known.parts)) == ("cuda", 9, 9)
    assert known.parts[0] == PeakRow("held", 5, 1, "float32 [5]", "a.py:3 in f", "Net/a")


def test_changes_within_the_tolerance_are_none() -> None:
    old = {("a", "cpu"): KnownPeak("a", "cpu", 100), ("b", "cpu"): KnownPeak("b", "cpu", 100)}

    def sizes(a: int, b: int) -> tuple[list[str], list[str]]:
        new = {("a", "cpu"): KnownPeak("a", "cpu", a), ("b", "cpu"): KnownPeak("b", "cpu", b)}
        grown, shrunk = changed_peaks(old, {**new, ("c", "cpu"): KnownPeak("c", "cpu", 1)}, 0.02)
        return [change.new.test for change in grown], [change.new.test for change in shrunk]

    assert sizes(102, 98) == ([], [])
    assert sizes(103, 200) == (["b", "a"], [])
    assert sizes(97, 103) == (["b"], ["a"])

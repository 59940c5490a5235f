"""The sums of the suite's own clean-up, and when they are told."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.model.first_init import FirstInit
from pytest_gpuleak.model.summary import MAX_LISTED, OTHERS, CleanUp, ProcessFacts, add_up, is_worth_telling, total_s
from pytest_gpuleak.reports.terminal.summary import render_clean_up, render_clean_up_calls

CALLS = st.lists(
    st.builds(
        CleanUp,
        what=st.sampled_from(["gc.collect", "empty_cache"]),
        by=st.integers(0, 30).map("fixture '{}'".format),
        file=st.sampled_from(["conftest.py", None]),
        line=st.sampled_from([1, 12, None]),
        count=st.integers(1, 1000),
        seconds=st.floats(0, 1e6),
    ),
    max_size=80,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(CALLS, CALLS)
def test_sums_lose_nothing_in_whatever_order_workers_end(one: list[CleanUp], other: list[CleanUp]) -> None:
    added = add_up([*one, *other])
    for what in ("gc.collect", "empty_cache"):
        calls = [call for call in (*one, *other) if call.what == what]
        sums = [call for call in added if call.what == what]
        assert sum(call.count for call in sums) == sum(call.count for call in calls)
        assert math.isclose(total_s(sums), total_s(calls))
    listed = [call for call in added if call.by != OTHERS]
    assert len(listed) <= MAX_LISTED
    assert len(added) - len(listed) <= 2
    assert listed == sorted(listed, key=lambda call: -call.seconds)
    again = add_up([*other, *one])
    assert sum(call.count for call in again) == sum(call.count for call in added)
    assert len(again) == len(added)


@pytest.mark.parametrize(("seconds", "told"), [(0.0, False), (2.9, False), (3.0, False), (3.1, True), (61.0, True)])
def test_more_than_a_twentieth_is_told(seconds: float, told: bool) -> None:
    calls = [CleanUp("gc.collect", "flush()", "conftest.py", 1, 1, seconds)]
    assert is_worth_telling(calls, 60.0) is told
    assert bool(render_clean_up({"cleanup": [vars(one) for one in calls], "run_s": 60.0})) is told


FIXTURE = {"by": "fixture 'cleanup'", "file": "conftest.py", "line": 12}
SUMMARY = {
    "run_s": 61.2,
    "cleanup": [
        {"what": "gc.collect", **FIXTURE, "count": 412, "seconds": 24.04},
        {"what": "empty_cache", **FIXTURE, "count": 1, "seconds": 2.0},
        {"what": "gc.collect", "by": "flush\n()", "file": "tests/\x1butils.py", "line": 3, "count": 2, "seconds": 0.25},
    ],
}


def test_one_line_names_the_first_and_counts_the_others() -> None:
    assert render_clean_up(SUMMARY) == [
        (
            "gpu-leak: fixture 'cleanup' (conftest.py:12) collects the heap 412 times and empties the device's cache 1 time: "
            "26 s of 61, 1 other 0.2 s; --gpu-leak finds the tests that need it"
        )
    ]


def test_each_caller_has_a_line_with_top() -> None:
    assert render_clean_up_calls(SUMMARY, 5, width=100) == [
        "gpu-leak: what the suite's own clean-up took, of 61 s",
        "      24.0 s  gc.collect, 412 times, by fixture 'cleanup' (conftest.py:12)",
        "       2.0 s  empty_cache, 1 time, by fixture 'cleanup' (conftest.py:12)",
        "       0.2 s  gc.collect, 2 times, by flush\\n() (tests/\\x1butils.py:3)",
    ]
    assert len(render_clean_up_calls(SUMMARY, 1, width=100)) == 2
    assert render_clean_up_calls(SUMMARY, 0, width=100) == []


def test_a_suite_without_clean_up_has_no_line() -> None:
    assert render_clean_up({"run_s": 3.0}) == []
    assert render_clean_up_calls({"run_s": 3.0}, 5, width=80) == []


def test_what_a_worker_sends_is_what_it_knew() -> None:
    known = ProcessFacts(run_s=0.0)
    calls = [CleanUp("gc.collect", f"flush{number}()", "conftest.py", number, 1, 0.5) for number in range(30)]
    known.add_run(4.0, calls)
    known.lost_devices.append({"device": "cuda:0"})
    known.note_first_init(FirstInit("cuda", "torch.cuda", "collection", "gw1", 7))
    taken = ProcessFacts()
    taken.add(known.encode(whole=True))
    assert taken.encode() == known.encode()
    assert len(known.encode()["cleanup"]) == MAX_LISTED + 1


def test_facts_that_nobody_told_are_no_part_of_a_summary() -> None:
    taken = ProcessFacts()
    taken.add({"tests": 3})
    assert taken.encode() == {}

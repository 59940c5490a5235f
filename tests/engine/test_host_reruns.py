"""Whether growth of the host's memory alone is worth a re-run."""

from __future__ import annotations

import pytest

from pytest_gpuleak.engine.host_reruns import (
    DOUBTFUL_SUM_S,
    MOST_TRY_EVERY,
    QUICK_RERUN_S,
    RERUN_S,
    SLOW_RERUN_S,
    SMALL_SUM_S,
    TRY_EVERY,
    HostReruns,
)

MIB = 2**20


def reruns_after(vain_s: float) -> HostReruns:
    reruns = HostReruns()
    reruns.note_vain(vain_s, MIB)
    return reruns


@pytest.mark.parametrize(
    ("expected_s", "elapsed_s", "vain_s", "why"),
    [
        (None, 10.0, 100.0, ""),
        (1.0, 10.0, 0.0, ""),
        (1.0, 10.0, RERUN_S - 1.0, ""),
        (1.0, 10.0, RERUN_S, "re-runs for growth of the host's memory alone have taken 2 s and found nothing"),
        (1.0, 100.0, RERUN_S, ""),
        (1.0, 100.0, 3.5, "re-runs for growth of the host's memory alone have taken 4 s and found nothing"),
        (30.0, 100.0, 0.0, "a re-run would take 30 s, over 4 s, for growth of the host's memory alone"),
        (QUICK_RERUN_S, 10.0, 100.0, ""),
    ],
)
def test_the_sum_of_vain_re_runs_is_a_small_part_of_the_session(
    expected_s: float | None, elapsed_s: float, vain_s: float, why: str
) -> None:
    assert reruns_after(vain_s).why_not(expected_s, elapsed_s, MIB) == why


@pytest.mark.parametrize(
    ("elapsed_s", "vain_s", "small", "made"),
    [
        (10.0, 0.0, True, True),
        (10.0, SMALL_SUM_S, True, True),
        (10.0, SMALL_SUM_S + 0.1, True, False),
        (10.0, SMALL_SUM_S + 0.1, False, True),
        (100.0, 2.9, True, True),
        (100.0, 3.1, True, False),
    ],
)
@pytest.mark.parametrize("expected_s", [QUICK_RERUN_S, SLOW_RERUN_S])
def test_re_runs_for_a_little_growth_that_are_not_slow_have_a_limit_of_their_own(
    expected_s: float, elapsed_s: float, vain_s: float, *, small: bool, made: bool
) -> None:
    assert (reruns_after(vain_s).why_not(expected_s, elapsed_s, MIB, small=small) == "") is made


def test_one_that_is_not_quick_is_not_tried_beyond_the_limit_of_all() -> None:
    reruns = reruns_after(5.0)
    assert all(reruns.why_not(SLOW_RERUN_S, 10.0, MIB, small=True) for _ in range(2 * TRY_EVERY))


def test_of_those_beyond_the_limit_one_of_so_many_is_made() -> None:
    reruns = reruns_after(5.0)
    made = [reruns.why_not(0.01, 10.0, MIB, small=True) == "" for _ in range(2 * TRY_EVERY)]
    assert made == 2 * ([False] * (TRY_EVERY - 1) + [True])


@pytest.mark.parametrize(
    ("elapsed_s", "vain_s", "checked"),
    [(10.0, 0.0, True), (10.0, DOUBTFUL_SUM_S, True), (10.0, 0.2, False), (100.0, 0.49, True), (100.0, 0.51, False)],
)
def test_growth_that_no_new_array_explains_is_checked_while_that_was_seldom_in_vain(
    elapsed_s: float, vain_s: float, *, checked: bool
) -> None:
    assert reruns_after(vain_s).are_worth_a_doubt(elapsed_s, MIB) is checked


def test_of_the_doubtful_beyond_the_limit_ever_fewer_are_checked() -> None:
    reruns = reruns_after(5.0)
    checked = [reruns.are_worth_a_doubt(10.0, MIB) for _ in range(TRY_EVERY + 16 + 3 * MOST_TRY_EVERY)]
    gaps = (TRY_EVERY, 16, MOST_TRY_EVERY, MOST_TRY_EVERY, MOST_TRY_EVERY)
    assert checked == [made for gap in gaps for made in [False] * (gap - 1) + [True]]


def test_growth_that_stands_out_is_worth_a_quick_re_run() -> None:
    reruns = reruns_after(5.0)
    made = [reruns.why_not(0.01, 10.0, size, small=True) == "" for size in (MIB, 2 * MIB, 2 * MIB + 1)]
    assert made == [False, False, True]
    assert [reruns.are_worth_a_doubt(10.0, size) for size in (MIB, 2 * MIB, 2 * MIB + 1)] == [False, False, True]


def test_a_slow_re_run_waits_for_a_second_test_that_grows_alike() -> None:
    reruns = HostReruns()
    whys = [reruns.why_not(1.0, 10.0, size * MIB, may_wait=lambda: True) for size in (24, 14, 2, 19)]
    assert [why == "" for why in whys] == [False, False, False, True]
    assert whys[0] == (
        "a re-run would take 1.0 s, and growth of the host's memory without a new array is nearly always a first use: "
        "the next test that grows alike is run again"
    )


@pytest.mark.parametrize(
    ("expected_s", "elapsed_s", "may_wait"),
    [(SLOW_RERUN_S, 10.0, True), (1.0, 100.0, True), (1.0, 10.0, False)],
    ids=["not slow", "not slow for the session", "an array was added, or it is the last test"],
)
def test_others_do_not_wait(expected_s: float, elapsed_s: float, *, may_wait: bool) -> None:
    assert HostReruns().why_not(expected_s, elapsed_s, MIB, may_wait=lambda: may_wait) == ""

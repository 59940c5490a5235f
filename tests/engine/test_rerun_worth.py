"""Whether growth of the host's memory alone is worth a re-run."""

from __future__ import annotations

import pytest

from pytest_gpuleak.engine.confirm.rerun_limits import (
    QUICK_RERUN_S,
    QUICK_SUM_S,
    RERUN_S,
    TRY_EVERY,
    why_not_worth_it,
)


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
    assert why_not_worth_it(expected_s, elapsed_s, vain_s) == why


@pytest.mark.parametrize(
    ("elapsed_s", "vain_s", "small", "made"),
    [
        (10.0, 0.0, True, True),
        (10.0, QUICK_SUM_S, True, True),
        (10.0, QUICK_SUM_S + 0.1, True, False),
        (10.0, QUICK_SUM_S + 0.1, False, True),
        (100.0, 2.9, True, True),
        (100.0, 3.1, True, False),
    ],
)
def test_quick_re_runs_for_a_little_growth_have_a_limit_of_their_own(
    elapsed_s: float, vain_s: float, *, small: bool, made: bool
) -> None:
    assert (why_not_worth_it(QUICK_RERUN_S, elapsed_s, vain_s, small=small) == "") is made


def test_of_those_beyond_the_limit_one_of_so_many_is_made() -> None:
    made = [why_not_worth_it(0.01, 10.0, 5.0, small=True, skipped=skipped) == "" for skipped in range(TRY_EVERY)]
    assert made == [False] * (TRY_EVERY - 1) + [True]

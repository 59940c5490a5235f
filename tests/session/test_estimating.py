"""Budgets judged by an estimate: over, held, or neither."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuleak.adapters.probe_protocol import TakenBlocks
from pytest_gpuleak.engine.peaks import PeakBytes
from pytest_gpuleak.model.text import MIB
from pytest_gpuleak.session.features.budgets.budget import Budget, Excess, describe_excess
from pytest_gpuleak.session.features.budgets.estimating import Estimate, estimate_of, judge_estimate


def of(least: int, most: int | None = None, percent: int = 5) -> Estimate:
    return Estimate(PeakBytes(least, least), PeakBytes(most or least, most or least), percent, "sort")


@pytest.mark.parametrize(
    ("estimate", "verdict"),
    [
        (of(94 * MIB), None),
        (of(96 * MIB), "estimated as about 96.0 MiB (+-5 %), too near to 100.0 MiB"),
        (of(105 * MIB), "estimated as about 105.0 MiB (+-5 %), too near to 100.0 MiB"),
        (of(94 * MIB, percent=10), "estimated as about 94.0 MiB (+-10 %), too near to 100.0 MiB"),
        (of(50 * MIB, 120 * MIB), "estimated as 50.0 MiB to 120.0 MiB (+-5 %), where 100.0 MiB are allowed: sort"),
        (of(50 * MIB, 90 * MIB), None),
        (Estimate(lacks=("a thread was started",)), "not estimated, since a thread was started"),
    ],
)
def test_neither_held_nor_over_within_the_margin(estimate: Estimate, verdict: str | None) -> None:
    assert judge_estimate(Budget(100 * MIB), estimate) == verdict


def test_over_beyond_the_margin() -> None:
    found = judge_estimate(Budget(100 * MIB), of(106 * MIB, 200 * MIB))
    assert isinstance(found, Excess)
    expected = "max_gpu_mb: estimated on the CPU: about 106.0 MiB (+-5 %), 6.0 MiB over the budget of 100 MiB"
    assert describe_excess(found) == expected


@pytest.mark.parametrize(
    "budget",
    [Budget(1, total=True), Budget(1, metric="reserved"), Budget(1, device="cuda:1"), Budget(1, device="xpu:2")],
)
def test_what_is_not_estimated(budget: Budget) -> None:
    assert judge_estimate(budget, of(MIB)) == "no device was used, and an estimate is of what a test adds on one device"


@pytest.mark.parametrize("device", [None, "cuda", "cuda:0"])
def test_the_first_device_stands_for_all(device: str | None) -> None:
    assert judge_estimate(Budget(2 * MIB, device=device), of(MIB)) is None


@settings(deadline=None)
@given(st.integers(1, 1 << 40), st.integers(1, 1 << 40), st.integers(0, 1 << 40), st.sampled_from([5, 10]))
def test_a_verdict_holds_for_all_that_the_estimate_may_mean(budget: int, least: int, more: int, percent: int) -> None:
    verdict = judge_estimate(Budget(budget), of(least, least + more, percent))
    lowest, highest = least * (100 - percent), (least + more) * (100 + percent)
    assert isinstance(verdict, Excess) == (lowest > budget * 100)
    assert (verdict is None) == (highest <= budget * 100)


def test_blocks_in_doubt_make_an_interval() -> None:
    taken = TakenBlocks([(0, MIB)], [(0, MIB), (1, MIB)], ("a copy", "sort"), autocast=True)
    assert estimate_of(taken) == Estimate(PeakBytes(MIB, 2 * MIB), PeakBytes(2 * MIB, 2 * MIB), 10, "a copy; sort")
    assert estimate_of(TakenBlocks([(0, MIB)], [], lacks=("traced",))).lacks == ("traced",)

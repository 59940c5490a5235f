"""Markers, verdicts and texts, from fed-in readings."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_gpuleak.model.findings import Contribution
from pytest_gpuleak.model.peaks import DevicePeak, Peak
from pytest_gpuleak.session.features.budgets.budget import (
    NO_DEVICE,
    Budget,
    Excess,
    describe_excess,
    describe_unchecked,
    finding_of,
    judge_budget,
    parse_budget,
    why_not_accepted,
)

MIB = 1 << 20
SIZES = "a number of MiB from 0, or a size in B, KiB, MiB, GiB or TiB such as '512KiB'"


def mark(*args: Any, **kwargs: Any) -> pytest.Mark:
    return pytest.mark.max_gpu_mb.with_args(*args, **kwargs).mark


def host_mark(*args: Any, **kwargs: Any) -> pytest.Mark:
    return pytest.mark.max_host_mb.with_args(*args, **kwargs).mark


@pytest.mark.parametrize(
    ("marker", "budget"),
    [
        (mark(500), Budget(500 * MIB)),
        (mark("1.5GiB"), Budget(1536 * MIB)),
        (mark(mb=0), Budget(0)),
        (mark(0.5, total=True), Budget(MIB // 2, total=True)),
        (mark(1, device="cuda:01", metric="reserved"), Budget(MIB, device="cuda:1", metric="reserved")),
        (mark(1, device="mps"), Budget(MIB, device="mps")),
        (mark(1, device=None), Budget(MIB)),
        (mark(1, device="cpu"), Budget(MIB, device="cpu")),
    ],
)
def test_a_marker_is_read(marker: pytest.Mark, budget: Budget) -> None:
    assert parse_budget(marker) == budget


class Hostile:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("marker", "why"),
    [
        (mark(), f"the size is missing, accepted is {SIZES}"),
        (mark(total=True), f"the size is missing, accepted is {SIZES}"),
        (mark(size=3), "unknown argument size=3, accepted are: mb, total, device, metric"),
        (mark(3, peak=1), "unknown argument peak=1, accepted are: mb, total, device, metric"),
        (mark(3, mb=4), "the size is given twice: 3 and mb=4"),
        (mark(3, True), "positional argument True is not accepted, only the size, then keyword arguments: total, "),
        (mark(-1), f"mb=-1 is not accepted, only {SIZES}"),
        (mark(math.nan), f"mb=nan is not accepted, only {SIZES}"),
        (mark(math.inf), f"mb=inf is not accepted, only {SIZES}"),
        (mark(True), f"mb=True is not accepted, only {SIZES}"),
        (mark("lots"), f"mb='lots' is not accepted, only {SIZES}"),
        (mark(None), f"mb=None is not accepted, only {SIZES}"),
        (mark([500]), f"mb=[500] is not accepted, only {SIZES}"),
        (mark(Hostile()), f"mb=a Hostile is not accepted, only {SIZES}"),
        (mark(1, total=1), "total=1 is not accepted, only True or False"),
        (mark(1, total="yes"), "total='yes' is not accepted, only True or False"),
        (mark(1, device=0), "device=0 is not accepted, only a device such as 'cuda:1', or a kind such as 'cuda'"),
        (mark(1, device=""), "device='' is not accepted"),
        (mark(1, device="cuda:"), "device='cuda:' is not accepted"),
        (mark(1, device="cuda:-1"), "device='cuda:-1' is not accepted"),
        (mark(1, device="GPU 0"), "device='GPU 0' is not accepted"),
        (mark(1, device=Hostile()), "device=a Hostile is not accepted"),
        (mark(1, metric="active"), "metric='active' is not accepted, only one of 'allocated', 'reserved'"),
        (mark(1, metric=None), "metric=None is not accepted"),
        (host_mark(-1), f"mb=-1 is not accepted, only {SIZES}"),
        (host_mark(1, mb=2), "the size is given twice: 1 and mb=2"),
        (host_mark(), f"the size is missing, accepted is {SIZES}"),
        (host_mark(1, 2), "positional argument 2 is not accepted, only the size"),
        (host_mark(1, total=True), "unknown argument total=True, accepted are: mb"),
    ],
)
def test_what_is_no_budget(marker: pytest.Mark, why: str) -> None:
    said = why_not_accepted(marker)
    assert said is not None
    assert said.startswith(why)
    with pytest.raises(ValueError, match=rf"^pytest\.mark\.{marker.name}: "):
        parse_budget(marker)


def peak(own: int, before: int = 0, *, exact: bool = True) -> Peak:
    return Peak(before * MIB, own * MIB, (before + own) * MIB, exact)


TWO = {"cuda:0": DevicePeak(peak(30, 100), peak(40, 200)), "cuda:1": DevicePeak(peak(50, 10), peak(20, 20))}


@pytest.mark.parametrize(
    ("budget", "verdict"),
    [
        (Budget(50 * MIB), None),
        (Budget(50 * MIB - 1), ("cuda:1", 50 * MIB, 10 * MIB)),
        (Budget(20 * MIB), ("cuda:1", 50 * MIB, 10 * MIB)),
        (Budget(20 * MIB, device="cuda:0"), ("cuda:0", 30 * MIB, 100 * MIB)),
        (Budget(40 * MIB, device="cuda:0"), None),
        (Budget(40 * MIB, device="cuda"), ("cuda:1", 50 * MIB, 10 * MIB)),
        (Budget(40 * MIB, device="cuda:7"), "cuda:7 was not used"),
        (Budget(40 * MIB, device="cud"), "cud was not used"),
        (Budget(60 * MIB, total=True), ("cuda:0", 130 * MIB, 100 * MIB)),
        (Budget(130 * MIB, total=True), None),
        (Budget(30 * MIB, metric="reserved"), ("cuda:0", 40 * MIB, 200 * MIB)),
        (Budget(30 * MIB, metric="reserved", device="cuda:1"), None),
        (Budget(200 * MIB, metric="reserved", total=True), ("cuda:0", 240 * MIB, 200 * MIB)),
        (Budget(0), ("cuda:1", 50 * MIB, 10 * MIB)),
    ],
)
def test_each_device_is_compared_by_itself(budget: Budget, verdict: object) -> None:
    found = judge_budget(budget, TWO)
    assert (found[1:4] if isinstance(found, Excess) else found) == verdict


@pytest.mark.parametrize(
    ("budget", "peak", "certain"),
    [
        (40, (30, 8), None),
        (38, (30, 8), None),
        (37, (30, 8), False),
        (30, (30, 8), False),
        (29, (30, 8), True),
        (29, (30, 0), True),
    ],
)
def test_workspaces_decide_only_where_the_budget_lies_between(
    budget: int, peak: tuple[int, int], certain: bool | None
) -> None:
    own, workspaces = peak[0] * MIB, peak[1] * MIB
    found = judge_budget(Budget(budget * MIB), {"cuda:0": DevicePeak(Peak(0, own, own, workspaces=workspaces))})
    assert (found.certain if isinstance(found, Excess) else found) is certain


def test_a_certain_excess_comes_before_one_that_is_not() -> None:
    devices = {
        "cuda:0": DevicePeak(Peak(0, 19 * MIB, 19 * MIB, workspaces=8 * MIB)),
        "cuda:1": DevicePeak(Peak(0, 21 * MIB, 21 * MIB)),
    }
    found = judge_budget(Budget(20 * MIB), devices)
    assert isinstance(found, Excess)
    assert (found.device, found.certain) == ("cuda:1", True)


def test_without_a_device_nothing_is_judged() -> None:
    assert judge_budget(Budget(0), {}) == NO_DEVICE


def test_a_peak_that_is_not_counted_can_only_show_an_excess() -> None:
    seen = {"mps:0": DevicePeak(peak(30, exact=False))}
    assert judge_budget(Budget(40 * MIB), seen) == "peaks are not counted on mps:0"
    assert isinstance(judge_budget(Budget(20 * MIB), seen), Excess)
    assert judge_budget(Budget(20 * MIB, metric="reserved"), seen) == "reserved memory is not counted on mps:0"


def test_one_device_over_the_budget_is_enough_whatever_the_others_count() -> None:
    mixed = {"cuda:0": DevicePeak(peak(30)), "mps:0": DevicePeak(peak(1, exact=False))}
    assert isinstance(judge_budget(Budget(20 * MIB), mixed), Excess)


ALIVE = (Contribution("float32 [8192, 8192]", 512 * MIB, 2), Contribution("float32 [64]", 256, 1))


def test_the_failure_says_peak_budget_excess_baseline_and_what_is_alive() -> None:
    excess = Excess(Budget(500 * MIB), "cuda:0", 612 * MIB, 20 * MIB)
    assert describe_excess(excess, ALIVE).splitlines() == [
        (
            "max_gpu_mb: peak of 612.0 MiB on cuda:0 is 112.0 MiB over the budget of 500 MiB "
            "(before the test: 20.0 MiB allocated)"
        ),
        "alive at the end of the call on cuda:0, largest first:",
        "  512.0 MiB: float32 [8192, 8192], 2 x",
        "  256 bytes: float32 [64], 1 x",
    ]
    assert describe_excess(excess).splitlines()[1:] == ["no array was alive on cuda:0 at the end of the call"]


def test_the_failure_names_the_metric_and_where_the_budget_comes_from() -> None:
    budget = Budget(MIB // 2, total=True, metric="reserved", source="--gpu-leak-max-mb")
    assert describe_excess(Excess(budget, "cuda:0", MIB, 0)).splitlines()[0] == (
        "--gpu-leak-max-mb: total reserved peak of 1.0 MiB on cuda:0 is 512.0 KiB over the budget of 512 KiB "
        "(before the test: 0 bytes reserved)"
    )


def test_what_was_there_before_is_told_by_fixture() -> None:
    there = [Contribution(f"fixture model{number}", (9 - number) * MIB) for number in range(7)]
    excess = Excess(Budget(MIB), "cuda:0", 2 * MIB, 40 * MIB)
    said = (
        "there before the test: fixture model0 9.0 MiB, fixture model1 8.0 MiB, fixture model2 7.0 MiB, "
        "fixture model3 6.0 MiB, fixture model4 5.0 MiB, 2 more 7.0 MiB"
    )
    assert describe_excess(excess, (), there).splitlines()[1] == said
    assert finding_of(excess, (), there).evidence[-1] == said


def test_workspaces_are_told_beside_the_peak() -> None:
    excess = Excess(Budget(MIB), "cuda:0", 2 * MIB, 0, 8 * MIB)
    assert describe_excess(excess).splitlines()[0] == (
        "max_gpu_mb: peak of 2.0 MiB on cuda:0 is 1.0 MiB over the budget of 1 MiB "
        "(before the test: 0 bytes allocated; not counted: 8.0 MiB of workspaces)"
    )
    assert finding_of(excess).evidence[-1] == "not counted: 8.0 MiB of workspaces"


def test_the_finding_has_the_figures_and_no_sizes_in_its_fingerprint() -> None:
    found = finding_of(Excess(Budget(500 * MIB), "cuda:0", 612 * MIB, 20 * MIB), ALIVE)
    assert (found.kind, found.failed, found.device, found.metric) == ("budget", True, "cuda:0", "allocated")
    assert (found.bytes, found.count, found.contributions) == (612 * MIB, 3, ALIVE)
    assert found.evidence == (
        "peak: 612.0 MiB over what was before",
        "budget: 500 MiB, by max_gpu_mb",
        "excess: 112.0 MiB",
        "before the test: 20.0 MiB allocated",
    )
    other = finding_of(Excess(Budget(5 * MIB), "cuda:1", 6 * MIB, 0))
    assert other.fingerprint == found.fingerprint
    assert finding_of(Excess(Budget(5 * MIB, metric="reserved"), "cuda:1", 6 * MIB, 0)).fingerprint != found.fingerprint


def test_the_line_on_budgets_that_were_not_checked() -> None:
    assert describe_unchecked([NO_DEVICE]) == "gpu-leak: 1 budget was not checked: no device was used"
    assert describe_unchecked([NO_DEVICE] * 3) == "gpu-leak: 3 budgets were not checked: no device was used"
    assert describe_unchecked(["cuda:7 was not used", NO_DEVICE, NO_DEVICE]) == (
        "gpu-leak: 3 budgets were not checked: no device was used (2), cuda:7 was not used (1)"
    )

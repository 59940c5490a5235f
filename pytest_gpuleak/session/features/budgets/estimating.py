"""Hold budgets to an estimate where no device is: `--gpu-leak-estimate`. Loaded for a test with a budget alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuleak.engine.peaks import PeakBytes, peak_of
from pytest_gpuleak.model.text import clean_text, format_bytes
from pytest_gpuleak.session.features.budgets.budget import NO_DEVICE, Budget, Excess
from pytest_gpuleak.session.frameworks import shared_frameworks

if TYPE_CHECKING:
    import pytest

    from pytest_gpuleak.adapters.probe_protocol import BlockRecorder, TakenBlocks
    from pytest_gpuleak.engine.detect.peak_meter import PeakMeter

MARGIN: Final = 5
"""Percent by which an estimate may be wrong (docs/estimate.md has the errors of models)."""

AUTOCAST_MARGIN: Final = 10
"""The same where operators ran in half precision."""

HOST: Final = "cpu"

LATE: Final = "torch was imported within the test, too late for an estimate"
_PLAIN: Final = "an estimate is of what a test adds on one device"


class Estimate(NamedTuple):
    """What a run would take on a device, in bytes: `least` for certain, `most` with what is in doubt, as `why` says.

    Both may be wrong by `percent`. `lacks` has why it is no estimate, if it is none.
    """

    least: PeakBytes = PeakBytes()
    most: PeakBytes = PeakBytes()
    percent: int = MARGIN
    why: str = ""
    lacks: tuple[str, ...] = ()


def estimate_of(taken: TakenBlocks) -> Estimate:
    """Compute the peaks of recorded blocks."""
    if taken.lacks:
        return Estimate(lacks=taken.lacks)
    least = peak_of(taken.least)
    most = peak_of(taken.most) if taken.doubts else least
    return Estimate(least, most, AUTOCAST_MARGIN if taken.autocast else MARGIN, "; ".join(taken.doubts))


def judge_estimate(budget: Budget, estimate: Estimate) -> Excess | str | None:
    """Return how an estimate exceeds a budget, why it tells neither, or None where it is held beyond the margin."""
    if budget.total or budget.metric != "allocated" or (budget.device or "cuda:0").partition(":")[2] not in ("", "0"):
        return f"{NO_DEVICE}, and {_PLAIN}"
    if estimate.lacks:
        return f"not estimated, since {clean_text(estimate.lacks[0], 120)}"
    least, most, percent = estimate.least.allocated, estimate.most.allocated, estimate.percent
    if least * (100 - percent) > budget.bytes * 100:
        return Excess(budget, HOST, least, 0, percent=percent)
    if most * (100 + percent) <= budget.bytes * 100:
        return None
    limit = format_bytes(budget.bytes)
    if least == most:
        return f"estimated as about {format_bytes(least)} (+-{percent} %), too near to {limit}"
    sizes = f"{format_bytes(least)} to {format_bytes(most)} (+-{percent} %)"
    return f"estimated as {sizes}, where {limit} are allowed: {clean_text(estimate.why, 120)}"


class Estimator:
    """Records tests, one at a time, from their setup to the end of their call. A fault costs the estimate alone."""

    def __init__(self, config: pytest.Config, meter: PeakMeter) -> None:
        self._config, self._meter = config, meter
        self._recorder: BlockRecorder | None = None

    def begin(self) -> None:
        """Begin to record a test; the meter tells which fixtures outlive it."""
        self._recorder = None
        with contextlib.suppress(Exception):  # `judge` meets the fault again, and tells it
            self._recorder = shared_frameworks(self._config).block_recorder()
        if self._recorder is not None:
            self._meter.follow(self._recorder)
            self._recorder.begin()

    def end(self) -> None:
        """End the record, which `judge` uses. Safe to call twice."""
        if self._recorder is not None:
            self._recorder.end()
            self._meter.follow(None)

    def drop(self) -> None:
        """Forget the record."""
        self.end()
        self._recorder = None

    def judge(self, budget: Budget) -> Excess | str | None:
        """Judge the test that was recorded, which has used no device, and forget the record."""
        recorder = self._recorder
        self.drop()
        try:
            if recorder is not None:
                return judge_estimate(budget, estimate_of(recorder.taken()))
            return NO_DEVICE if shared_frameworks(self._config).block_recorder() is None else LATE
        except Exception as error:  # noqa: BLE001 - a torch without what this needs
            return f"not estimated, since {clean_text(f'{type(error).__name__}: {error}', 120)}"

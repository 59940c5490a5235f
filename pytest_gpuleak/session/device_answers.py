"""Follow whether the devices answer, test by test: after an error that CUDA calls sticky nothing can be checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Literal

    from pytest_gpuleak.engine.detect.counters import CounterWatch
    from pytest_gpuleak.model.lost_device import LostDevice


class DeviceAnswers:
    """The answers of one process's devices, as the counters have met them: no call is made for this."""

    def __init__(self, counters: CounterWatch, worker: str) -> None:
        self._counters = counters
        self._worker = worker
        self._last: str | None = None
        self.lost: LostDevice | None = None
        """The device that stopped answering: nothing is checked since."""

    def why_unchecked(self, moment: Literal["before", "during"], nodeid: str) -> str:
        """Return that a device was lost, once the counters were read for a test; empty while all answer."""
        counters = self._counters
        if counters.lost is None:
            if counters.has_answered and moment == "during":
                self._last = nodeid
            return ""
        if self.lost is None:
            from pytest_gpuleak.model.lost_device import LostDevice  # most runs lose none

            device, error = counters.lost
            self.lost = LostDevice(device, error, nodeid, moment, self._last, self._worker)
        return self.lost.reason

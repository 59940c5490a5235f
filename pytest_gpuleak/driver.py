"""What the driver says of the devices, asked when there is a reason to: NVML costs up to milliseconds a call."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.probes import ProbeUnavailable

if TYPE_CHECKING:
    from pytest_gpuleak.probes.nvml import Nvml, NvmlReading


def _uses_cuda() -> bool:
    """Whether this process has a CUDA device in use: without one nobody misses the driver."""
    cuda: Any = sys.modules.get("torch.cuda")
    return type(cuda) is ModuleType and bool(cuda.is_initialized())


class Driver:
    """NVML, started when it is first asked.

    Args:
        faults: where a line goes on why it cannot be asked.
    """

    def __init__(self, faults: list[str]) -> None:
        self._faults = faults
        self._nvml: Nvml | None = None
        self._asked = False

    def read(self) -> dict[str, NvmlReading]:
        """By device, who holds what; empty where nobody can say. Never raises."""
        nvml = self._start()
        if nvml is None:
            return {}
        readings = nvml.read()
        if nvml.fault:
            self._faults.append(f"nvml: {nvml.fault}")
            self._nvml = None
        return readings

    def stop(self) -> None:
        """Let go of the library. Safe to call twice."""
        if self._nvml is not None:
            self._nvml.stop()
            self._nvml = None

    def _start(self) -> Nvml | None:
        if not self._asked:
            self._asked = True
            from pytest_gpuleak.probes.nvml import Nvml

            nvml = Nvml()
            try:
                nvml.start()
            except ProbeUnavailable as why:
                if _uses_cuda():
                    self._faults.append(f"nvml not read: {why}")
            else:
                self._nvml = nvml
        return self._nvml

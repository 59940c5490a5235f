"""The memory of torch's devices, as their own allocators count it. torch is looked up, never imported.

What the figures rest on, in torch's sources:

- CUDA and ROCm (both named `cuda`): `torch._C._cuda_memoryStats`. It copies a structure of counters under a lock and
  makes no call to the device (`DeviceCachingAllocator::getStats`, c10/cuda/CUDACachingAllocator.cpp). Blocks of
  `torch.cuda.MemPool` and of graphs are counted with the others, and with expandable segments `reserved` is what is
  mapped. With the backend `cudaMallocAsync` the driver's pool is asked, where the device was used ("returns 0s without
  creating a context", c10/cuda/CUDAMallocAsyncAllocator.cpp); it does not tell allocated from active, and counts
  nothing as requested. Under `PYTORCH_NO_CUDA_MEMORY_CACHING`, with a pluggable allocator and while
  `torch.cuda.caching_allocator_enable(False)` holds, nothing that is allocated is counted: there is no reading then,
  and `TorchDevices.absent` says why.
- Other accelerators (`xpu`, `mtia`, `hpu`, a PrivateUse1 backend under its own name): the functions of the same names
  on the module `torch.<device>`, where they exist; read once its `is_initialized()` says so.
- MPS: `torch._C._mps_currentAllocatedMemory`, with what the driver holds as reserved. It has no peaks.

A device is read once its allocator has ever served this process.
"""

from __future__ import annotations

import os
import sys
from operator import methodcaller
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.torch import lookup as torch_lookup
from pytest_gpuleak.adapters.torch.lookup import loaded_torch
from pytest_gpuleak.adapters.torch.module import MODULES, accelerator_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpuleak.adapters.probe_protocol import DeviceReading
    from pytest_gpuleak.adapters.torch.peak_counters import DeviceCounters, PeakView

TOO_LARGE = 1 << 63
"""A counter from here up is a negative number that was read as unsigned."""
UNCACHED = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
"""Set to anything, they switch the caching allocator off (`forceUncachedAllocator`, CUDACachingAllocator.cpp)."""


class TorchDevices:
    """The counters of torch's devices, behind `DeviceProbe`.

    Attributes:
        name: ``torch``.
        first_used: the devices that the last `read` met for the first time: what their first use took (a context's
            random state, kernels, workspaces) is no leak of the test that happened to come first.
        idle: whether the last `read` has found that no device can have been used yet.
        absent: why devices have no readings, by their type: ``{"cuda": "..."}``. As of the last `read`.
    """

    name = "torch"

    def __init__(self) -> None:
        self.first_used: frozenset[str] = frozenset()
        self.absent: dict[str, str] = {}
        self.idle = False
        self._seen: set[str] = set()
        # Made when first met, before there is a view: they hold the functions as they are for us without it.
        self._known: dict[str, DeviceCounters] = {}
        self._views: dict[str, PeakView] = {}
        self._peaks = False
        self._flags = _Flags()

    def read(self) -> dict[str, DeviceReading]:
        """The devices that this process has used. Raises what torch raises where one fails."""
        readings: dict[str, DeviceReading] = {}
        if self.absent:
            self.absent = {}
        self.idle = not self._seen and self._flags.idle()
        if self.idle:
            return readings
        torch = loaded_torch()
        if torch is not None:
            for counters in self._counters(torch):
                self._read(counters, readings)
            self._read_mps(torch, readings)
            self.first_used = frozenset(readings) - self._seen
            self._seen |= self.first_used
        return readings

    def used(self, device: str) -> int | None:
        """Bytes of a device in use by anybody (``mem_get_info``); None where the driver does not tell.

        Not for a device without a reading: asking about one that the process has not used creates a context of hundreds
        of MiB (pytorch/pytorch#86493). On devices that share the host's memory the figure is the host's
        (pytorch/pytorch#176180).
        """
        torch = loaded_torch()
        kind, _, index = device.partition(":")
        ask = getattr(vars(torch).get(kind), "mem_get_info", None)
        if torch is None or ask is None or device not in self._seen:
            return None
        free, total = ask(int(index or 0))
        return int(total) - int(free) if 0 <= free <= total else None

    def begin_peaks(self) -> None:
        """From here on peaks are of what follows; what the user's code sees of them stays as it is."""
        self._peaks = True
        if not self._seen and self._flags.idle():
            return
        torch = loaded_torch()
        if torch is None:
            return
        for counters in self._counters(torch):
            self._view(counters).begin()

    def stop(self) -> None:
        """Put back what was wrapped."""
        self._peaks = False
        for view in self._views.values():
            view.remove()
        self._views.clear()

    def _counters(self, torch: Any) -> Iterator[DeviceCounters]:
        """The kinds of devices that this process has initialised and that count."""
        # Here, since most runs use no device.
        from pytest_gpuleak.adapters.torch.peak_counters import CudaCounters, ModuleCounters

        cuda = getattr(torch, "cuda", None)
        if cuda is not None and hasattr(torch._C, "_cuda_memoryStats") and self._cuda_in_use(torch, cuda):
            why = cuda_not_counted(torch)
            if why is None:
                yield self._known.get("cuda") or self._known.setdefault("cuda", CudaCounters(torch))
            else:
                self.absent["cuda"] = why
        for name in accelerator_names(torch):
            module = vars(torch).get(name)
            initialised = getattr(module, "is_initialized", None)
            if initialised is None or not initialised():
                continue
            if name not in self._known and getattr(module, "memory_allocated", None) is not None:
                self._known[name] = ModuleCounters(name, torch, module)
            if name in self._known:
                yield self._known[name]
            else:
                self.absent[name] = f"torch.{name} has no memory counters"

    def _cuda_in_use(self, torch: Any, cuda: Any) -> bool:
        """Whether this process has initialised CUDA; a `torch.cuda` that a test has imported anew has forgotten it."""
        if cuda.is_initialized():
            return True
        forked = getattr(torch._C, "_cuda_isInBadFork", None)
        return "cuda" in self._known and forked is not None and not forked()

    def _read(self, counters: DeviceCounters, readings: dict[str, DeviceReading]) -> None:
        view = self._view(counters) if self._peaks else None
        for index in range(counters.count()):
            name = f"{counters.type}:{index}"
            if name not in self._seen and not counters.used(index):
                continue
            figures = counters.figures(index) if view is None else view.figures(index)
            if name not in self._seen and not any(figures.values()):
                continue
            if view is None or not counters.resets:
                figures = {key: value for key, value in figures.items() if not key.endswith("peak")}
            reading = checked(figures)
            if reading is not None:
                readings[name] = reading
            else:
                self.absent[name] = "its counters are out of range"

    def _read_mps(self, torch: Any, readings: dict[str, DeviceReading]) -> None:
        if not getattr(torch._C, "_has_mps", False) or not torch._C._mps_is_available():
            return
        # Without contexts on Metal, asking costs no memory; there is no way to tell whether the device was used.
        allocated = torch._C._mps_currentAllocatedMemory()
        if allocated or "mps:0" in self._seen:
            reading = checked({"allocated": allocated, "reserved": torch._C._mps_driverAllocatedMemory()})
            if reading is not None:
                readings["mps:0"] = reading

    def _view(self, counters: DeviceCounters) -> PeakView:
        view = self._views.get(counters.type)
        if view is None:
            from pytest_gpuleak.adapters.torch.peak_counters import PeakView

            view = self._views[counters.type] = PeakView(counters)
        view.install()
        return view


# What `is_initialized()` asks first (torch/cuda/__init__.py, torch/xpu/__init__.py).
_is_initialized = methodcaller("get", "_initialized", True)


class _Flags:
    """Whether no device can have been used yet, by a look at a few flags: all that most test runs need.

    It is asked several times a test; which flags there are is looked up anew only where torch has got or lost a name, as
    it does when a backend registers its module, or while it is being imported.
    """

    def __init__(self) -> None:
        self._base: type | None = None
        self._torch: Any = None
        self._names: dict[str, Any] = {}
        self._size = -1
        self._flags: list[dict[str, Any]] | None = []

    def idle(self) -> bool:
        base = torch_lookup.LOOKUP.tensor_base
        if (
            base is not self._base
            or len(self._names) != self._size
            or (base is None and sys.modules.get("torch") is not self._torch)
        ):
            self._look_up()
        if self._flags is None:
            return False
        return not any(map(_is_initialized, self._flags))

    def _look_up(self) -> None:
        # Without torch nothing is kept: what else is in its place may be the user's, or an import under way.
        self._torch = loaded_torch()
        self._base = torch_lookup.LOOKUP.tensor_base
        self._names = {} if self._torch is None else vars(self._torch)
        self._size = len(self._names)
        self._flags = [] if self._torch is None else _flags_of(self._names)


def _flags_of(names: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The names of the modules whose flag tells whether their device was used; None: there is one without such a flag."""
    core = names["_C"]
    private = getattr(core, "_get_privateuse1_backend_name", None)
    if getattr(core, "_has_mps", False) or (private is not None and private() in names):
        return None
    modules = [names[name] for name in ("cuda", *MODULES) if names.get(name) is not None]
    return [vars(module) for module in modules] if all(type(module) is ModuleType for module in modules) else None


def cuda_not_counted(torch: Any) -> str | None:
    """Why torch's counters of CUDA memory would mislead, or None where they are right."""
    for variable in UNCACHED:
        if variable in os.environ:
            return f"{variable} is set: torch counts nothing"
    backend = getattr(torch._C, "_cuda_getAllocatorBackend", None)
    if backend is not None and backend() not in {"native", "cudaMallocAsync"}:
        return f"the allocator is {backend()}, which counts nothing"
    enabled = getattr(torch._C, "_cuda_cudaCachingAllocator_is_enabled", None)
    if enabled is not None and not enabled():
        return "the caching allocator is disabled"
    return None


def checked(figures: Mapping[str, int | None]) -> DeviceReading | None:
    """A reading of those figures that can be true.

    Counters that are negative, wrapped (2**63 and above) or no integers are absent, and so are those that contradict
    what is allocated: less reserved, less active, a lower peak. Without a figure for allocated there is no reading.
    """
    sound = {
        name: value
        for name, value in figures.items()
        if type(value) is int and 0 <= value < TOO_LARGE  # not a bool
    }
    allocated = sound.get("allocated")
    if allocated is None:
        return None
    for name in ("reserved", "active", "peak"):
        if sound.get(name, allocated) < allocated:
            del sound[name]
    if sound.get("requested", 0) > allocated:
        del sound["requested"]
    if "reserved_peak" in sound and sound["reserved_peak"] < sound.get("reserved", allocated):
        del sound["reserved_peak"]
    from pytest_gpuleak.adapters.probe_protocol import DeviceReading  # most runs use no device

    return DeviceReading(**sound)

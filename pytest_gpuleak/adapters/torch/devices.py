"""Read the memory of torch's devices from their own allocators, and watch what empties them. torch is looked up, never imported.

A device is read once its allocator has served this process. CUDA and ROCm (both `cuda`): `torch._C._cuda_memoryStats`,
which copies counters without a call to the device (CUDACachingAllocator.cpp, `getStats`), blocks of `MemPool` and
graphs included; with expandable segments `reserved` is the mapped memory. `cudaMallocAsync` knows no requested or
active bytes (CUDAMallocAsyncAllocator.cpp). Where nothing is counted, `TorchDevices.absent` says why. `xpu`, `mtia`,
`hpu` and PrivateUse1: the same functions on `torch.<device>`. MPS: the driver's memory as reserved, no peaks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from operator import methodcaller
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.dependencies import replaced
from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading
from pytest_gpuleak.adapters.torch import lookup as torch_lookup
from pytest_gpuleak.adapters.torch.lookup import MODULES, accelerator_names, loaded_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_gpuleak.adapters.probe_protocol import AroundCall
    from pytest_gpuleak.adapters.torch.peak_counters import DeviceCounters, PeakView


TOO_LARGE = 1 << 63
"""Counters from here up are negative numbers read as unsigned."""
UNCACHED = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
"""Set to any value, they disable the caching allocator (`forceUncachedAllocator`, CUDACachingAllocator.cpp)."""

STICKY = frozenset(
    {
        "an illegal memory access was encountered",
        "the launch timed out and was terminated",
        "device-side assert triggered",
        "hardware stack error",
        "an illegal instruction was encountered",
        "misaligned address",
        "operation not supported on global/shared address space",
        "invalid program counter",
        "unspecified launch failure",
    }
)
"""Texts of the errors after which "any further CUDA work will return the same error": CUDA Runtime API, ``cudaError``, 700,
702, 710 and 714 to 719. HIP has texts of the same words."""
_RAISED = re.compile(r"(?:CUDA|HIP)(?: driver)? error: (.*)")
"""The first line of an error of torch's (c10/cuda/CUDAException.cpp, ATen/cuda/Exceptions.h)."""


class TorchDevices(DeviceProbe):
    """The counters of torch's devices. `first_used`: those met first by the last `read`, whose context is no leak."""

    name = "torch"

    def __init__(self) -> None:
        self.first_used: frozenset[str] = frozenset()
        self.absent: dict[str, str] = {}
        self.idle = False
        self._seen: set[str] = set()
        # Created when first met, before a view wraps the functions: they keep the unwrapped functions.
        self._known: dict[str, DeviceCounters] = {}
        self._views: dict[str, PeakView] = {}
        self._peaks = False
        self._cache_calls: CacheCalls | None = None
        self._flags = _Flags()

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings of the devices that this process has used. Raises torch's error where a device fails."""
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
            if self._cache_calls is not None:
                for device in self.first_used:
                    self._cache_calls.watch(torch, device.partition(":")[0])
        return readings

    def used(self, device: str) -> int | None:
        """Return a seen device's bytes in use (``mem_get_info``); asking another creates a context (pytorch#86493)."""
        torch = loaded_torch()
        kind, _, index = device.partition(":")
        ask = getattr(vars(torch).get(kind), "mem_get_info", None)
        if torch is None or ask is None or device not in self._seen:
            return None
        context = getattr(torch._C, "_cuda_hasPrimaryContext", None) if kind == "cuda" else None
        if context is not None and not context(int(index or 0)):
            return None  # an expandable segment alone is there
        free, total = ask(int(index or 0))
        return int(total) - int(free) if 0 <= free <= total else None

    def why_lost(self, error: Exception) -> str | None:
        """Return the first line of an error that each later call of this process will raise again; None for others."""
        first_line = str(error).partition("\n")[0].strip()
        raised = _RAISED.fullmatch(first_line)
        return first_line if raised is not None and raised[1] in STICKY else None

    def begin_peaks(self) -> None:
        """Restart the peaks. The peaks that user code sees stay unchanged."""
        self._peaks = True
        if not self._seen and self._flags.idle():
            return
        torch = loaded_torch()
        if torch is None:
            return
        for counters in self._counters(torch):
            self._view(counters).begin()

    def pass_cache_calls(self, around: AroundCall) -> None:
        """Wrap `empty_cache` once a device is in use: before, it does nothing."""
        self._cache_calls = CacheCalls(around)

    def stop(self) -> None:
        """Restore the wrapped functions."""
        self._peaks = False
        if self._cache_calls is not None:
            self._cache_calls.remove()
        self._cache_calls = None
        for view in self._views.values():
            view.remove()
        self._views.clear()

    def _counters(self, torch: Any) -> Iterator[DeviceCounters]:
        # Imported here because most runs use no device.
        from pytest_gpuleak.adapters.torch.peak_counters import CudaCounters, DeviceCounters

        cuda = getattr(torch, "cuda", None)
        if cuda is not None and hasattr(torch._C, "_cuda_memoryStats") and self._cuda_in_use(torch, cuda):
            why = _cuda_not_counted(torch)
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
                self._known[name] = DeviceCounters(name, torch, module)
            if name in self._known:
                yield self._known[name]
            else:
                self.absent[name] = f"torch.{name} has no memory counters"

    def _cuda_in_use(self, torch: Any, cuda: Any) -> bool:
        """Return whether this process has initialised CUDA, even if a test has re-imported `torch.cuda` since."""
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
        # Metal has no contexts, so asking costs no memory; whether the device was used is unknown.
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


# The flag that `is_initialized()` reads first (torch/cuda/__init__.py, torch/xpu/__init__.py).
_is_initialized = methodcaller("get", "_initialized", True)


class _Flags:
    """Tells by a few flags that no device can have been used; finds them again when torch gains or loses a name."""

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
        return self._flags is not None and not any(map(_is_initialized, self._flags))

    def _look_up(self) -> None:
        # Without torch nothing is kept: another object in its place may be the user's, or a module being imported.
        self._torch = loaded_torch()
        self._base = torch_lookup.LOOKUP.tensor_base
        self._names = {} if self._torch is None else vars(self._torch)
        self._size = len(self._names)
        self._flags = [] if self._torch is None else _flags_of(self._names)


def _flags_of(names: dict[str, Any]) -> list[dict[str, Any]] | None:
    core = names["_C"]
    private = getattr(core, "_get_privateuse1_backend_name", None)
    if getattr(core, "_has_mps", False) or (private is not None and private() in names):
        return None
    modules = [names[name] for name in ("cuda", *MODULES) if names.get(name) is not None]
    return [vars(module) for module in modules] if all(type(module) is ModuleType for module in modules) else None


def _cuda_not_counted(torch: Any) -> str | None:
    """Return why torch's counters of CUDA memory would mislead; None if they are right."""
    for variable in UNCACHED:
        if variable in os.environ:
            return f"{variable} is set: torch counts nothing"
    backend = getattr(torch._C, "_cuda_getAllocatorBackend", None)
    if backend is not None and backend() not in {"native", "cudaMallocAsync"}:
        return f"the allocator is {backend()}, which counts nothing"
    enabled = getattr(torch._C, "_cuda_cudaCachingAllocator_is_enabled", None)
    return "the caching allocator is disabled" if enabled is not None and not enabled() else None


def checked(figures: Mapping[str, int | None]) -> DeviceReading | None:
    """Return a reading of the plausible figures; None without plausible allocated bytes.

    Wrapped, negative and too small figures are dropped, and requested bytes while a stream still uses freed blocks,
    which the allocator subtracts late (CUDACachingAllocator.cpp, `free`).
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
    if sound.get("active", allocated) > allocated or sound.get("requested", 0) > allocated:
        sound.pop("requested", None)
    if "reserved_peak" in sound and sound["reserved_peak"] < sound.get("reserved", allocated):
        del sound["reserved_peak"]
    return DeviceReading(**sound)


_NATIVE = ("_cuda_emptyCache", "_accelerator_emptyCache")
"""Functions of `torch._C` that `torch.cuda.empty_cache` and `torch.accelerator.empty_cache` look up at each call
(torch/cuda/memory.py, torch/accelerator/memory.py): a user's name bound to either is met too."""


class CacheCalls:
    """The functions that are wrapped. `around` is handed each call, and returns what it returns."""

    def __init__(self, around: AroundCall) -> None:
        self._around: AroundCall | None = around
        self._wrapped: set[tuple[int, str]] = set()
        self._undo = contextlib.ExitStack()

    def watch(self, torch: Any, device_type: str) -> None:
        """Wrap the functions for a type of device that the process has used."""
        for name in _NATIVE:
            self._wrap(torch._C, name)
        if device_type != "cuda":
            self._wrap(getattr(torch, device_type, None), "empty_cache")

    def remove(self) -> None:
        """Restore the functions. A wrapper that other code has wrapped stays, and passes calls on."""
        self._around = None
        self._undo.close()
        self._wrapped.clear()

    def _wrap(self, owner: Any, name: str) -> None:
        real = getattr(owner, name, None)
        if real is not None and (id(owner), name) not in self._wrapped:
            self._wrapped.add((id(owner), name))
            self._undo.enter_context(replaced(owner, name, self._wrapper(real)))

    def _wrapper(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def empty_cache(*arguments: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            if self._around is None:
                return real(*arguments, **named)
            return self._around(functools.partial(real, *arguments, **named))

        return empty_cache

"""Where torch's counters are read, and peaks of our own beside the user's.

torch has one peak a device, which `reset_peak_memory_stats` sets back. Who resets it for a test of his takes the peak
since the start of the program from whoever asks next. So `PeakView` resets it and keeps what it was: the functions by
which users ask are wrapped, and answer with the higher of what was kept and what is. A user's own reset forgets what
was kept for him, and what the peak was until then is noted for us.
"""

from __future__ import annotations

import contextlib
import functools
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Figures = dict[str, "int | None"]
"""A device's counters in bytes, under the names of `DeviceReading`'s fields; None where there is none."""

KEYS = {
    "allocated": ("allocated_bytes", "current"),
    "requested": ("requested_bytes", "current"),
    "reserved": ("reserved_bytes", "current"),
    "active": ("active_bytes", "current"),
    "peak": ("allocated_bytes", "peak"),
    "reserved_peak": ("reserved_bytes", "peak"),
}
"""Where torch's statistics have them, under ``all`` (c10/core/CachingDeviceAllocator.h, `DeviceStats`)."""
FUNCTIONS = {
    "allocated": "memory_allocated",
    "reserved": "memory_reserved",
    "peak": "max_memory_allocated",
    "reserved_peak": "max_memory_reserved",
}
STATISTICS = ("memory_stats_as_nested_dict", "memory_stats")


class DeviceCounters(Protocol):
    """The counters of one type of device, initialised by this process.

    Attributes:
        type: torch's name of the type: ``cuda``.
        resets: whether its peaks can be set back.
    """

    type: str
    resets: bool

    def count(self) -> int:
        """How many devices there are."""

    def used(self, index: int) -> bool:
        """False where the device is known not to have been used, so that reading it can be left out."""

    def figures(self, index: int) -> Figures:
        """The device's counters, by torch's functions as they were when first met."""

    def reset(self, index: int) -> None:
        """Set torch's peaks back."""

    def peaks(self, index: int) -> dict[Any, Any]:
        """All of its peaks: `answers` are merged with them."""

    def accessors(self) -> list[PeakAccessor]:
        """The functions by which users ask for peaks and reset them."""


class PeakAccessor:
    """A function by which users reach a device's peaks.

    Args:
        owner: the module that has it.
        name: its name there.
        resets: whether it sets peaks back; else it answers with statistics, or with one figure.
        figure: for one figure, its name in what `DeviceCounters.peaks` returns.
        index: the device's index for the arguments of a call; None where it cannot be told.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        *,
        resets: bool = False,
        figure: str | None = None,
        index: Callable[[tuple[Any, ...], dict[str, Any]], int | None],
    ) -> None:
        self.owner, self.name, self.resets, self.figure, self.index = owner, name, resets, figure, index
        self.real = vars(owner).get(name) or getattr(owner, name)


class CudaCounters:
    """CUDA's, and ROCm's under the same name, by the functions below `torch.cuda` and `torch.accelerator`."""

    type = "cuda"
    resets = True

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._statistics = torch._C._cuda_memoryStats
        self._reset = torch._C._cuda_resetPeakMemoryStats
        self._context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
        self._backend = getattr(torch._C, "_cuda_getAllocatorBackend", None)

    def count(self) -> int:
        """How many devices are visible."""
        return int(self._torch._C._cuda_getDeviceCount())

    def used(self, index: int) -> bool:
        """Whether the device has a context; the driver is asked, which creates none."""
        return self._context is None or bool(self._context(index))

    def figures(self, index: int) -> Figures:
        """The caching allocator's figures, or the driver's for its pool."""
        figures = from_nested(self._statistics(index))
        if self._backend is not None and self._backend() != "native":
            figures["requested"] = None
            figures["active"] = None
        return figures

    def reset(self, index: int) -> None:
        """Set torch's peaks back; with `cudaMallocAsync` this needs the device's context, so only once it is used."""
        self._reset(index)

    def peaks(self, index: int) -> dict[Any, Any]:
        """All peaks of the statistics."""
        return peaks_of(self._statistics(index))

    def accessors(self) -> list[PeakAccessor]:
        """The functions of `torch._C` that `torch.cuda`'s and `torch.accelerator`'s call by name at each call."""
        native = self._torch._C
        accessors = [
            PeakAccessor(native, "_cuda_memoryStats", index=first),
            PeakAccessor(native, "_cuda_resetPeakMemoryStats", resets=True, index=first),
        ]
        # Where CUDA is there, it is the accelerator of `torch.accelerator`.
        if hasattr(native, "_accelerator_getDeviceStats"):
            accessors.append(PeakAccessor(native, "_accelerator_getDeviceStats", index=first))
            accessors.append(PeakAccessor(native, "_accelerator_resetPeakStats", resets=True, index=first))
        return accessors


class ModuleCounters:
    """Those of a device with a module of its own, `torch.<type>`, in the manner of `torch.cuda`.

    It has to have `memory_allocated` at least.
    """

    def __init__(self, type_: str, torch: Any, module: Any) -> None:
        self.type = type_
        self._torch, self._module = torch, module
        self._functions = {name: getattr(module, function, None) for name, function in FUNCTIONS.items()}
        self._reset = getattr(module, "reset_peak_memory_stats", None)
        statistics = (getattr(module, name, None) for name in STATISTICS)
        self._statistics = next((function for function in statistics if function is not None), None)
        self.resets = self._reset is not None

    def count(self) -> int:
        """How many devices the module says there are."""
        return int(self._module.device_count())

    def used(self, index: int) -> bool:  # noqa: ARG002 - a module tells of the process, not of a device
        """Not known before its figures are."""
        return True

    def figures(self, index: int) -> Figures:
        """From its statistics in one call where they have the usual names, else function by function."""
        if self._statistics is not None:
            statistics = self._statistics(index)
            figures = from_nested(statistics) if "allocated_bytes" in statistics else from_flat(statistics)
            if figures["allocated"] is not None:
                return figures
            if not statistics:
                return {}
        return {name: function(index) for name, function in self._functions.items() if function is not None}

    def reset(self, index: int) -> None:
        """Set its peaks back."""
        if self._reset is not None:
            self._reset(index)

    def peaks(self, index: int) -> dict[Any, Any]:
        """All peaks of its statistics, nested or flat, and what its functions say, by their figures' names."""
        found = {} if self._statistics is None else peaks_of(self._statistics(index))
        for name in ("peak", "reserved_peak"):
            function = self._functions[name]
            if function is not None:
                found[name] = function(index)
        return found

    def accessors(self) -> list[PeakAccessor]:
        """The module's own functions, and for a device of torch's the function of `torch._C` below them."""
        accessors = []
        native = self._torch._C
        below = (f"_{self.type}_memoryStats", f"_{self.type}_resetPeakMemoryStats")
        if hasattr(native, below[0]):
            accessors.append(PeakAccessor(native, below[0], index=first))
            if hasattr(native, below[1]):
                accessors.append(PeakAccessor(native, below[1], resets=True, index=first))
            return accessors
        for name in STATISTICS:
            if hasattr(self._module, name):
                accessors.append(PeakAccessor(self._module, name, index=self._index))
        for figure in ("peak", "reserved_peak"):
            if hasattr(self._module, FUNCTIONS[figure]):
                accessors.append(PeakAccessor(self._module, FUNCTIONS[figure], figure=figure, index=self._index))
        if self.resets:
            accessors.append(PeakAccessor(self._module, "reset_peak_memory_stats", resets=True, index=self._index))
        return accessors

    def _index(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> int | None:
        """The index of the device that a call names: by number, by name, as `torch.device`, or the current one."""
        chosen = arguments[0] if arguments else next(iter(named.values()), None)
        if type(chosen) is int:
            return chosen if chosen >= 0 else int(self._module.current_device())
        if chosen is not None:
            index = self._torch.device(chosen).index
            if index is not None:
                return int(index)
        return int(self._module.current_device())


class PeakView:
    """What users see of one type's peaks while we have peaks of our own.

    Args:
        counters: the devices'.
    """

    def __init__(self, counters: DeviceCounters) -> None:
        self._counters = counters
        self._kept: dict[int, dict[Any, Any]] = {}
        self._noted: dict[int, Figures] = {}
        self._doors: list[tuple[PeakAccessor, Any]] = []
        self._active = False
        self._asking: int | None = None

    def install(self) -> None:
        """Wrap the functions by which users ask, once."""
        if self._active:
            return
        self._active = True
        if self._counters.resets:
            for door in self._counters.accessors():
                wrapper = self._wrapper(door)
                setattr(door.owner, door.name, wrapper)
                self._doors.append((door, wrapper))

    def remove(self) -> None:
        """Put the functions back; what somebody has wrapped since stays, and ours inside of it just passes on."""
        self._active = False
        for door, wrapper in self._doors:
            if vars(door.owner).get(door.name) is wrapper:
                setattr(door.owner, door.name, door.real)
        self._doors.clear()

    def begin(self) -> None:
        """Our peaks begin anew on the devices that were used; what the users' are is kept for them."""
        self._noted.clear()
        if not self._counters.resets:
            return
        with self._ourselves():
            for index in range(self._counters.count()):
                peaks = self._counters.peaks(index) if self._counters.used(index) else {}
                # A device without any peak is left alone: to reset cudaMallocAsync's would create its context.
                if any_above_zero(peaks):
                    higher(self._kept.setdefault(index, {}), peaks)
                    self._counters.reset(index)

    def figures(self, index: int) -> Figures:
        """The device's figures, with our peaks: as high as noted before a user's reset."""
        with self._ourselves():
            figures = self._counters.figures(index)
        higher(figures, self._noted.get(index, {}))
        return figures

    @contextlib.contextmanager
    def _ourselves(self) -> Iterator[None]:
        """What this thread asks meanwhile is for us: a function that we call may reach a wrapped one by its name."""
        before, self._asking = self._asking, get_ident()
        try:
            yield
        finally:
            self._asking = before

    def _wrapper(self, door: PeakAccessor) -> Any:
        function, kept = door.real, self._kept

        @functools.wraps(function)
        def peaks(*arguments: Any, **named: Any) -> Any:
            if not self._active or self._asking == get_ident():
                return function(*arguments, **named)
            if door.resets:
                self._note(door, arguments, named)
                return function(*arguments, **named)
            answer = function(*arguments, **named)
            index = self._index(door, arguments, named)
            before = kept.get(index) if index is not None else None
            if not before:
                return answer
            if door.figure is None:
                return with_peaks(answer, before)
            higher_figure = before.get(door.figure)
            return max(answer, higher_figure) if type(answer) is int and type(higher_figure) is int else answer

        return peaks

    def _note(self, door: PeakAccessor, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A user is about to reset a device's peaks: note them for us, and forget what was kept for him."""
        index = self._index(door, arguments, named)
        if index is None:
            return
        try:
            with self._ourselves():
                figures = self._counters.figures(index)
        except Exception:  # noqa: BLE001 - the user's own call, which follows, is the one to say what is wrong
            return
        peaks = {name: figures.get(name) for name in ("peak", "reserved_peak")}
        higher(self._noted.setdefault(index, {}), peaks)
        self._kept.pop(index, None)

    @staticmethod
    def _index(door: PeakAccessor, arguments: tuple[Any, ...], named: dict[str, Any]) -> int | None:
        try:
            return door.index(arguments, named)
        except Exception:  # noqa: BLE001 - what is no device is for the real function to refuse
            return None


def first(arguments: tuple[Any, ...], named: dict[str, Any]) -> int | None:  # noqa: ARG001 - functions in C have no names
    """The index of the device for functions of `torch._C`, which take it as their only argument."""
    return arguments[0] if arguments and type(arguments[0]) is int else None


def from_nested(statistics: dict[str, Any]) -> Figures:
    """The figures from statistics as `torch.cuda.memory_stats_as_nested_dict` returns them."""
    return {name: statistics.get(family, {}).get("all", {}).get(metric) for name, (family, metric) in KEYS.items()}


def from_flat(statistics: dict[str, Any]) -> Figures:
    """The figures from statistics as `torch.cuda.memory_stats` returns them."""
    return {name: statistics.get(f"{family}.all.{metric}") for name, (family, metric) in KEYS.items()}


def peaks_of(statistics: dict[Any, Any]) -> dict[Any, Any]:
    """All peaks of nested or flat statistics, under the keys that they have there."""
    found: dict[Any, Any] = {}
    for key, value in statistics.items():
        if type(value) is dict:
            inner = peaks_of(value)
            if inner:
                found[key] = inner
        elif is_peak(key):
            found[key] = value
    return found


def with_peaks(statistics: Any, before: dict[Any, Any]) -> Any:
    """The statistics with peaks as high as they were before; the same object, since torch builds it for each call."""
    for key, value in before.items():
        if key not in statistics:
            continue
        if type(value) is dict:
            with_peaks(statistics[key], value)
        elif is_peak(key):
            statistics[key] = max(statistics[key], value)
    return statistics


def higher(into: dict[Any, Any], other: dict[Any, Any]) -> None:
    """Raise the numbers in `into` to those in `other`, which may be nested."""
    for key, value in other.items():
        before = into.get(key)
        if type(value) is dict:
            higher(into.setdefault(key, {}), value)
        elif before is None or (value is not None and value > before):
            into[key] = value


def any_above_zero(figures: dict[Any, Any]) -> bool:
    """Whether any number among these, which may be nested, is above zero."""
    return any(any_above_zero(value) if type(value) is dict else bool(value) for value in figures.values())


def is_peak(key: object) -> bool:
    """Whether that key of torch's statistics is one of a peak: ``peak``, or ``allocated_bytes.all.peak``."""
    return type(key) is str and (key == "peak" or key.endswith(".peak"))

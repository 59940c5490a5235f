"""Read torch's counters, with peaks of the plugin's own beside the user's: a reset destroys torch's peak for all.

So `PeakView` keeps the user's peak, and wraps the functions that return or reset peaks.
"""

from __future__ import annotations

import contextlib
import functools
from threading import get_ident
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.dependencies import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Index = Callable[[tuple[Any, ...], dict[str, Any]], int | None]

Figures = dict[str, "int | None"]
"""A device's counters in bytes, by the names of `DeviceReading`'s fields; None where not counted."""
Path = tuple[str, ...]
Peaks = dict[Path, int]
"""Peaks in bytes or numbers, each by the keys that lead to it in torch's statistics: ``("allocated_bytes", "all", "peak")``."""

KEYS = {
    "allocated": ("allocated_bytes", "current"),
    "requested": ("requested_bytes", "current"),
    "reserved": ("reserved_bytes", "current"),
    "active": ("active_bytes", "current"),
    "peak": ("allocated_bytes", "peak"),
    "reserved_peak": ("reserved_bytes", "peak"),
}
"""Their keys in torch's statistics, under ``all`` (c10/core/CachingDeviceAllocator.h, `DeviceStats`)."""
FUNCTIONS = {
    "allocated": "memory_allocated",
    "reserved": "memory_reserved",
    "peak": "max_memory_allocated",
    "reserved_peak": "max_memory_reserved",
}
STATISTICS = ("memory_stats_as_nested_dict", "memory_stats")


class PeakAccessor:
    """The function `name` of `owner` that reads peaks, or `resets` them; `index` tells the device of a call."""

    def __init__(self, owner: Any, name: str, index: Index, figure: str | None = None) -> None:
        self.owner, self.name, self.index, self.figure = owner, name, index, figure
        self.resets = "reset" in name
        self.real = vars(owner).get(name) or getattr(owner, name)


def _accessors(owner: Any, names: Iterable[str], index: Index) -> list[PeakAccessor]:
    return [PeakAccessor(owner, name, index) for name in names if hasattr(owner, name)]


class DeviceCounters:
    """Counters of a type of devices in use that has its own module `torch.<type>`; `resets`: whether its peaks can be reset.

    Its functions are bound before a view wraps them.
    """

    def __init__(self, type_: str, torch: Any, module: Any) -> None:
        self.type = type_
        self._torch, self._module = torch, module
        self._functions = {name: getattr(module, function, None) for name, function in FUNCTIONS.items()}
        self._reset: Any = getattr(module, "reset_peak_memory_stats", None)
        statistics = (getattr(module, name, None) for name in STATISTICS)
        self._statistics: Any = next((function for function in statistics if function is not None), None)
        self.resets = self._reset is not None

    def count(self) -> int:
        """Return the number of devices."""
        return int(self._module.device_count())

    def used(self, index: int) -> bool:
        """Return False if the device is known to be unused, so that it need not be read."""
        return True

    def figures(self, index: int) -> Figures:
        """Return the figures from the statistics if they have the usual names, else function by function."""
        if self._statistics is not None:
            statistics = self._statistics(index)
            figures = _from_nested(statistics) if "allocated_bytes" in statistics else _from_flat(statistics)
            if figures["allocated"] is not None:
                return figures
            if not statistics:
                return {}
        return {name: function(index) for name, function in self._functions.items() if function is not None}

    def reset(self, index: int) -> None:
        """Reset torch's peaks. With `cudaMallocAsync` the device needs a context, so it must have been used."""
        self._reset(index)

    def peaks(self, index: int) -> Peaks:
        """Return all peaks of its statistics, nested or flat, and its functions' peaks by name."""
        found = {} if self._statistics is None else _peaks_of(self._statistics(index))
        for name in ("peak", "reserved_peak"):
            function = self._functions[name]
            peak = None if function is None else function(index)
            if peak is not None:
                found[(name,)] = peak
        return found

    def accessors(self) -> list[PeakAccessor]:
        """Return the module's functions, or for torch's own devices the functions of `torch._C` below them."""
        native = self._torch._C
        below = (f"_{self.type}_memoryStats", f"_{self.type}_resetPeakMemoryStats")
        if hasattr(native, below[0]):
            return _accessors(native, below, first)
        figures = [
            PeakAccessor(self._module, FUNCTIONS[figure], self._index, figure)
            for figure in ("peak", "reserved_peak")
            if hasattr(self._module, FUNCTIONS[figure])
        ]
        return figures + _accessors(self._module, (*STATISTICS, "reset_peak_memory_stats"), self._index)

    def _index(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> int | None:
        chosen = arguments[0] if arguments else next(iter(named.values()), None)
        if type(chosen) is int:
            return chosen if chosen >= 0 else int(self._module.current_device())
        if chosen is not None:
            index = self._torch.device(chosen).index
            if index is not None:
                return int(index)
        return int(self._module.current_device())


class CudaCounters(DeviceCounters):
    """CUDA's and ROCm's counters, from the functions below `torch.cuda` and `torch.accelerator`."""

    def __init__(self, torch: Any) -> None:
        super().__init__("cuda", torch, torch.cuda)
        self._statistics = torch._C._cuda_memoryStats
        self._reset = torch._C._cuda_resetPeakMemoryStats
        self.resets = True
        self._context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
        self._backend = getattr(torch._C, "_cuda_getAllocatorBackend", None)
        self._settings = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
        self._families = -1
        self._pairs: list[Path] = []
        self._triples: list[Path] = []
        self._varying: list[str] = []

    def count(self) -> int:
        """Return the number of visible devices."""
        return int(self._torch._C._cuda_getDeviceCount())

    def used(self, index: int) -> bool:
        """Return whether the device has a context, or memory without one. Asking creates none."""
        return self._context is None or bool(self._context(index)) or self._is_mapped(index)

    def _is_mapped(self, index: int) -> bool:
        """Return whether the device has had an expandable segment, whose memory the driver maps without a context."""
        return (
            self._settings is not None
            and "expandable_segments" in self._settings()
            and self._backend is not None
            and self._backend() == "native"
            and self._statistics(index)["reserved_bytes"]["all"]["peak"] > 0
        )

    def figures(self, index: int) -> Figures:
        """Return the caching allocator's figures, or the driver's for its pool."""
        figures = super().figures(index)
        if self._backend is not None and self._backend() != "native":
            figures["requested"] = None
            figures["active"] = None
        return figures

    def peaks(self, index: int) -> Peaks:
        """Return all peaks of the statistics, searched for once: only what has entries for private pools varies."""
        statistics = self._statistics(index)
        if len(statistics) != self._families:
            self._learn(statistics)
        found = {path: statistics[path[0]][path[1]][path[2]] for path in self._triples}
        for path in self._pairs:
            found[path] = statistics[path[0]][path[1]]
        for family in self._varying:
            if statistics[family]:
                found |= _peaks_of({family: statistics[family]})
        return found

    def _learn(self, statistics: dict[Any, Any]) -> None:
        paths = list(_peaks_of(statistics))
        fixed = {path[0] for path in paths} - {path[0] for path in paths if len(path) not in (2, 3)}
        self._pairs = [path for path in paths if path[0] in fixed and len(path) == 2]
        self._triples = [path for path in paths if path[0] in fixed and len(path) == 3]
        self._varying = [key for key, value in statistics.items() if type(value) is dict and key not in fixed]
        self._families = len(statistics)

    def accessors(self) -> list[PeakAccessor]:
        """Return the functions of `torch._C` that `torch.cuda` and `torch.accelerator` look up at each call."""
        names = ["_cuda_memoryStats", "_cuda_resetPeakMemoryStats"]
        # With CUDA present, `torch.accelerator` means CUDA.
        names += ["_accelerator_getDeviceStats", "_accelerator_resetPeakStats"]
        return _accessors(self._torch._C, names, first)


class PeakView:
    """The user's peaks of a device type while the plugin has its own."""

    def __init__(self, counters: DeviceCounters) -> None:
        self._counters = counters
        self._kept: dict[int, Peaks] = {}
        self._noted: dict[int, Figures] = {}
        self._undo = contextlib.ExitStack()
        self._active = False
        self._asking: int | None = None

    def install(self) -> None:
        """Wrap the functions by which users read and reset peaks, once."""
        if self._active:
            return
        self._active = True
        if self._counters.resets:
            for door in self._counters.accessors():
                self._undo.enter_context(replaced(door.owner, door.name, self._wrapper(door)))

    def remove(self) -> None:
        """Restore the functions. A wrapper that other code has wrapped stays, and passes calls on."""
        self._active = False
        self._undo.close()

    def begin(self) -> None:
        """Restart the plugin's peaks on the devices in use, and keep the user's."""
        self._noted.clear()
        if not self._counters.resets:
            return
        with self._ourselves():
            for index in range(self._counters.count()):
                peaks = self._counters.peaks(index) if self._counters.used(index) else {}
                # Skip a device without any peak: resetting cudaMallocAsync's would create its context.
                if any(peaks.values()):
                    higher(self._kept.setdefault(index, {}), peaks)
                    self._counters.reset(index)

    def figures(self, index: int) -> Figures:
        """Return the device's figures with the plugin's peaks, including peaks noted before a user's reset."""
        with self._ourselves():
            figures = self._counters.figures(index)
        higher(figures, self._noted.get(index, {}))
        return figures

    @contextlib.contextmanager
    def _ourselves(self) -> Iterator[None]:
        """Mark this thread's calls as the plugin's: torch's functions may call a wrapped function by its name."""
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
                return _with_peaks(answer, before)
            higher_figure = before.get((door.figure,))
            return max(answer, higher_figure) if type(answer) is int and type(higher_figure) is int else answer

        return peaks

    def _note(self, door: PeakAccessor, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        index = self._index(door, arguments, named)
        if index is None:
            return
        try:
            with self._ourselves():
                figures = self._counters.figures(index)
        except Exception:  # noqa: BLE001 - the user's own call, which follows, raises the same error
            return
        peaks = {name: figures.get(name) for name in ("peak", "reserved_peak")}
        higher(self._noted.setdefault(index, {}), peaks)
        self._kept.pop(index, None)

    @staticmethod
    def _index(door: PeakAccessor, arguments: tuple[Any, ...], named: dict[str, Any]) -> int | None:
        try:
            return door.index(arguments, named)
        except Exception:  # noqa: BLE001 - the real function refuses an invalid device
            return None


def first(arguments: tuple[Any, ...], named: dict[str, Any]) -> int | None:  # noqa: ARG001 - functions in C have no names
    """Return the device's index for functions of `torch._C`, which take it as their only argument."""
    return arguments[0] if arguments and type(arguments[0]) is int else None


def _from_nested(statistics: dict[str, Any]) -> Figures:
    return {name: statistics.get(family, {}).get("all", {}).get(metric) for name, (family, metric) in KEYS.items()}


def _from_flat(statistics: dict[str, Any]) -> Figures:
    return {name: statistics.get(f"{family}.all.{metric}") for name, (family, metric) in KEYS.items()}


def _peaks_of(statistics: dict[Any, Any]) -> Peaks:
    """Return all peaks of nested or flat statistics, by the keys that lead to them."""
    found: Peaks = {}
    for key, value in statistics.items():
        if type(value) is dict:
            found |= {(key, *path): peak for path, peak in _peaks_of(value).items()}
        elif _is_peak(key) and value is not None:
            found[(key,)] = value
    return found


def _with_peaks(statistics: Any, before: Peaks) -> Any:
    """Raise the peaks in the statistics, in place since torch builds them for each call, to those in `before`."""
    for path, value in before.items():
        inner = statistics
        for key in path[:-1]:
            inner = inner.get(key, {})
        if inner.get(path[-1], value) < value:
            inner[path[-1]] = value
    return statistics


def higher(into: dict[Any, Any], other: Mapping[Any, int | None]) -> None:
    """Raise the numbers in `into` to those in `other`."""
    for key, value in other.items():
        before = into.get(key)
        if before is None or (value is not None and value > before):
            into[key] = value


def _is_peak(key: object) -> bool:
    """Return whether a key of torch's statistics is a peak's: ``peak``, or ``allocated_bytes.all.peak``."""
    return type(key) is str and (key == "peak" or key.endswith(".peak"))

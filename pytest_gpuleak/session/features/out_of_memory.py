"""Tell in a failing test's report who holds the memory that has run out, without allocating on a device. Sizes are bytes."""

from __future__ import annotations

import dataclasses
import errno
import re
import textwrap
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.adapters.bulk import keep_largest, read_live_arrays
from pytest_gpuleak.adapters.dependencies import dependency_in_place, import_dependency
from pytest_gpuleak.engine.left_behind import OwnedBytes, active_fixtures, summed
from pytest_gpuleak.heap.safe_access import class_module, class_name, is_subclass, mro, slot
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.readings import HOST, DeviceSpace
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, shorten_middle
from pytest_gpuleak.session.faults import error_chain
from pytest_gpuleak.session.pytest_internals import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    import pytest

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.nvml.readings import NvmlReading
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.readings import ArrayReading


class OutOfMemorySection:
    """Tell in a failing test's report who holds the memory. `explain_late` searches for holders not known yet."""

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge, explain_late: Callable[[], object]) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._explain_late = explain_late
        self._warned = False

    def add(self, item: pytest.Item, error: BaseException, report: pytest.TestReport) -> None:
        """Add the section where memory ran out."""
        try:
            shortage = find_shortage(error)
            if shortage is not None:
                self._explain_late()
                lines = explain_out_of_memory(_read_facts(self._tracker, self._knowledge, shortage))
                report.sections.append((HOST_SECTION if shortage.device == HOST else SECTION, "\n".join(lines)))
        except Exception as failure:  # noqa: BLE001 - there may be no memory left to say it with
            if not self._warned:
                self._warned = True
                with suppress(Exception):
                    why = type(failure).__name__
                    warn(item.config, f"who holds the memory could not be told: {why}", item.nodeid)


def _read_facts(tracker: RunTracker, knowledge: SessionKnowledge, shortage: Shortage) -> OutOfMemory:
    readings: dict[int, ArrayReading] = {}
    own: set[int] = set()
    with suppress(Exception):  # as far as memory allows
        born = {id(array) for array in tracker.left_arrays()}
        for identity, reading in read_live_arrays(tracker.frameworks.arrays):
            keep_largest(readings, reading)
            if identity in born:
                own.add(reading.storage)
    setups = tracker.ownership.active
    held = {handle.storage for setup in setups for handle, _ in setup.held if handle.alive()}
    left, earlier = knowledge.left_behind.storages(), knowledge.left_behind.alive()
    mine: list[ArrayReading] = []
    others: list[ArrayReading] = []
    for storage, reading in readings.items():
        if storage not in held and (reading.device, storage) not in left:
            (mine if storage in own else others).append(reading)
    counters = tracker.counters.read()
    on_host = shortage.device == HOST
    return OutOfMemory(
        shortage=shortage,
        devices=() if on_host else tuple(_device_facts(counters, tracker.frameworks)),
        host=isolated(lambda: _host_facts(counters), lambda _: None) if on_host else None,
        earlier=tuple(earlier),
        fixtures=tuple(active_fixtures(setups, readings)),
        own=tuple(group_readings(mine)),
        others=tuple(group_readings(others)),
        nvml={} if on_host else isolated(tracker.driver.read, lambda _: {}),
    )


def _device_facts(counters: Mapping[tuple[str, str], int], frameworks: Frameworks) -> Iterator[DeviceFacts]:
    for device in sorted({device for device, _ in counters if device != HOST}):
        # Devices that have been read are in use: to ask for their free memory makes no context.
        space = isolated(partial(frameworks.device_space, device), lambda _: None) or DeviceSpace(None, None, None)
        allocated, reserved = counters.get((device, "allocated")), counters.get((device, "reserved"))
        yield DeviceFacts(device, space.total, space.free, allocated, reserved, space.largest_free)


def _host_facts(counters: Mapping[tuple[str, str], int]) -> HostFacts:
    psutil = import_dependency("psutil", required=True)
    with dependency_in_place("psutil"):
        memory, resident = psutil.virtual_memory(), psutil.Process().memory_info().rss
    return HostFacts(memory.total, memory.available, resident, counters.get((HOST, "heap")))


SECTION: Final = "GPU memory (who holds it)"
HOST_SECTION: Final = "Memory (who holds it)"
WIDTH: Final = 80
MAX_ROWS: Final = 5
"""Rows per list of owners, groups of tensors and processes; the rest is summed."""

_ID_LIMIT = 300

_CLASSES: Final = {
    ("OutOfMemoryError", "torch"),
    ("OutOfMemoryError", "cupy"),
    ("ResourceExhaustedError", "tensorflow"),
}
"""Errors that always mean out of memory, by name and package."""

_TELLING_CLASSES: Final = {("CudaAPIError", "numba"), ("CUDARuntimeError", "cupy_backends")}
"""Errors, beside RuntimeError, whose message decides."""

_HOST_TEXTS = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
_DEVICE_TEXTS = (
    "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "RESOURCE_EXHAUSTED",
    "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY",
)  # fmt: skip
"""Messages of out-of-memory errors with general classes: RuntimeError of torch, jaxlib's XlaRuntimeError."""

_SIZE = r"([\d.]+) ?(bytes|[KMGTPE]i?B)"
_REQUESTED = re.compile(rf"(?:tr(?:ied|ying) to allocate|Unable to allocate) {_SIZE}", re.IGNORECASE)
_KIND = re.compile(r"([A-Za-z]\w*) (?:backend |error: )?out of memory")
_INDEX = re.compile(r"\bGPU (\d+)")
_TOTAL = re.compile(rf"total capacity of {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free")
_KINDS = {"hip": "cuda"}  # ROCm's devices are torch.cuda's
_POWERS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}


class Shortage(NamedTuple):
    """The content of an out-of-memory error, in bytes; the device is ``cuda:0`` or ``host``. None where not stated."""

    device: str | None
    requested: int | None = None
    total: int | None = None
    free: int | None = None


class DeviceFacts(NamedTuple):
    """A device in bytes, None where unknown. `free`: used by no process; `largest_free`: the largest cached block."""

    device: str
    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    largest_free: int | None = None


class HostFacts(NamedTuple):
    """Bytes of the host: all, available, resident for this process, allocated by malloc."""

    total: int
    available: int
    resident: int
    heap: int | None = None


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
    """Everything known when memory has run out: of the `host`, or of the `devices` that this process uses.

    What is alive was left by tests and fixtures that have ended (`earlier`), is held by `fixtures` still set up, is the
    failing test's `own`, or is of `others`, by type and shape. `nvml` has the driver's readings by device.
    """

    shortage: Shortage
    devices: tuple[DeviceFacts, ...] = ()
    host: HostFacts | None = None
    earlier: tuple[OwnedBytes, ...] = ()
    fixtures: tuple[OwnedBytes, ...] = ()
    own: tuple[OwnedBytes, ...] = ()
    others: tuple[OwnedBytes, ...] = ()
    nvml: Mapping[str, NvmlReading] = dataclasses.field(default_factory=dict)


def find_shortage(error: BaseException) -> Shortage | None:
    """Return the first out-of-memory error in an exception's chain and groups, by class names: runs no user code."""
    return next(filter(None, map(_shortage_of, error_chain(error))), None)


def explain_out_of_memory(facts: OutOfMemory) -> list[str]:
    """Return the lines of the report's section: how much there is, and who holds it, most bytes first."""
    lines: list[str] = []
    for depth, text in _explain_host(facts) if facts.host is not None else _explain_devices(facts):
        first, further = "  " * depth, "  " * (depth + 2)
        lines += textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=further, break_on_hyphens=False)
    return lines


def group_readings(readings: Iterable[ArrayReading]) -> list[OwnedBytes]:
    """Group tensors by type and shape, most bytes first. Each storage must be given once."""
    return summed((f"{one.dtype} {list(one.shape)}", one.device, one.storage_bytes, "") for one in readings)


def _shortage_of(error: BaseException) -> Shortage | None:
    kind, text = type(error), _text_of(error)
    classes = {(class_name(line), (class_module(line) or "").partition(".")[0]) for line in mro(kind)}
    if not classes.isdisjoint(_CLASSES):  # first: cupy's is a MemoryError
        return _read_shortage(text)
    if is_subclass(kind, MemoryError):
        return _read_shortage(text)._replace(device=HOST)
    if is_subclass(kind, OSError) and slot(error, OSError, "errno") == errno.ENOMEM:  # a fork, or a mapping
        return Shortage(HOST)
    if is_subclass(kind, RuntimeError) or not classes.isdisjoint(_TELLING_CLASSES):
        if any(known in text for known in _HOST_TEXTS):
            return _read_shortage(text)._replace(device=HOST)
        if any(known in text for known in _DEVICE_TEXTS):
            return _read_shortage(text)
    return None


def _text_of(error: BaseException) -> str:
    # Only numpy's own class, which formats its message on request, is called.
    if is_subclass(type(error), MemoryError) and (class_module(type(error)) or "").startswith("numpy."):
        return str(error)
    return " ".join(part for part in slot(error, BaseException, "args") if type(part) is str)


def _read_shortage(text: str) -> Shortage:
    kind, index = _KIND.search(text), _INDEX.search(text)
    device = None
    if kind is not None:
        name = kind[1].lower()
        device = None if index is None else f"{_KINDS.get(name, name)}:{index[1]}"
    return Shortage(device, *(_size_in(pattern, text) for pattern in (_REQUESTED, _TOTAL, _FREE)))


def _size_in(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    if match is None:
        return None
    with suppress(ValueError):
        power: int = _POWERS[match[2][0].lower()]
        return round(float(match[1].rstrip(".")) * 1024.0**power)
    return None


Line = tuple[int, str]
"""A line and its depth of indentation."""


def _explain_devices(facts: OutOfMemory) -> Iterator[Line]:
    shortage = facts.shortage
    devices = [device for device in facts.devices if shortage.device in (None, device.device)]
    if shortage.device is not None and not devices:
        devices = [DeviceFacts(shortage.device)]
    for device in devices:
        yield from _explain_device(device, facts)
    if not devices:
        yield 0, "no device's memory could be read"


def _explain_device(device: DeviceFacts, facts: OutOfMemory) -> Iterator[Line]:
    name, nvml, error = device.device, facts.nvml.get(device.device), facts.shortage
    if error.device is None:
        error = Shortage(None, error.requested)  # its figures may be another device's
    total, free = _known(device.total, error.total), _known(device.free, error.free)
    used = None if total is None or free is None else max(0, total - free)
    if nvml is not None:
        used = _known(used, nvml.used)
        total = _known(total, nvml.total)
    own = device.reserved if nvml is None else _known(nvml.own, device.reserved)
    yield 0, f"{name}: {_headline(used, total, _known(own, device.allocated), facts.earlier, name)}"
    yield from _allocator(device, error.requested)
    if own is not None and device.reserved is not None and own > device.reserved:
        outside = format_bytes(own - device.reserved)
        yield 1, f"outside torch's allocator: {outside} (context, libraries, raw allocations)"
    seen = yield from _owners(facts, name)
    if device.allocated is not None and device.allocated > seen:
        yield 1, f"no tensor that Python sees: {format_bytes(device.allocated - seen)} (gradients, graphs, workspaces)"
    if nvml is not None:
        yield from _processes("child processes", nvml.children)
        yield from _processes("other processes", nvml.others)


def _known(figure: int | None, otherwise: int | None) -> int | None:
    return otherwise if figure is None else figure


def _explain_host(facts: OutOfMemory) -> Iterator[Line]:
    host = facts.host
    assert host is not None
    used = max(0, host.total - host.available)
    yield 0, f"host: {_headline(used, host.total, host.resident, facts.earlier, 'cpu')}"
    if facts.shortage.requested is not None:
        yield 1, f"asked for: {format_bytes(facts.shortage.requested)}"
    if host.heap is not None:
        yield 1, f"heap: {format_bytes(host.heap)} handed out by malloc"
    yield from _owners(facts, "cpu")


def _headline(used: int | None, total: int | None, own: int | None, earlier: Sequence[OwnedBytes], device: str) -> str:
    parts = []
    if used is not None and total is not None:
        parts.append(f"{_of(used, total)} in use")
    left = sum(row.bytes for row in earlier if row.device == device)
    if own is not None:
        parts.append(f"this process {format_bytes(own)}")
    if left:
        parts.append(f"{'of which ' if own is not None else ''}tests that ended hold {format_bytes(left)}")
    return "; ".join(parts).replace("; of which", ", of which") or "its memory could not be read"


def _of(part: int, whole: int) -> str:
    left, right = format_bytes(part).split(" "), format_bytes(whole).split(" ")
    return f"{left[0] if left[1] == right[1] else ' '.join(left)} of {' '.join(right)}"


def _allocator(device: DeviceFacts, requested: int | None) -> Iterator[Line]:
    if requested is not None:
        yield 1, f"asked for: {format_bytes(requested)}"
    if device.allocated is None:
        return
    text = f"allocator: {format_bytes(device.allocated)} allocated"
    if device.reserved is not None:
        gap = max(0, device.reserved - device.allocated)
        text += f", {format_bytes(device.reserved)} reserved; {format_bytes(gap)} cached and free"
        if device.largest_free is not None:
            text += f", {format_bytes(device.largest_free)} of it in one piece"
        if requested is not None and gap >= requested:
            fits = device.largest_free is not None and device.largest_free >= requested
            text += f": enough, but {'of another pool or stream' if fits else 'in pieces too small (fragmentation)'}"
    yield 1, text


def _owners(facts: OutOfMemory, device: str) -> Generator[Line, None, int]:
    seen = 0
    for title, rows in (
        ("tests that ended", facts.earlier),
        ("fixtures still set up", facts.fixtures),
        ("this test", facts.own),
        ("other tensors (imports, failed tests)", facts.others),
    ):
        here = sorted((row for row in rows if row.device == device), key=lambda row: -row.bytes)
        if not here:
            continue
        total = sum(row.bytes for row in here)
        seen += total
        yield 1, f"{title}: {format_bytes(total)}"
        for row in here[:MAX_ROWS]:
            yield 2, f"{format_bytes(row.bytes)} in {count_of(row.count, 'tensor')}: {clean_text(row.owner, _ID_LIMIT)}"
            for holder in row.holders:
                yield 3, f"held by {shorten_middle(clean_text(holder, _ID_LIMIT), WIDTH - 14)}"
        rest = here[MAX_ROWS:]
        if rest:
            yield 2, f"{format_bytes(sum(row.bytes for row in rest))} in {len(rest)} more"
    return seen


def _processes(title: str, processes: Sequence[Any]) -> Iterator[Line]:
    if not processes:
        return
    known = sum(process.bytes or 0 for process in processes)
    yield 1, f"{title}: {format_bytes(known)}"
    for process in sorted(processes, key=lambda process: -(process.bytes or 0))[:MAX_ROWS]:
        size = "unknown" if process.bytes is None else format_bytes(process.bytes)
        yield 2, f"{size}: pid {process.pid}{'' if process.name is None else ' ' + clean_text(process.name, _ID_LIMIT)}"
    if len(processes) > MAX_ROWS:
        yield 2, f"{len(processes) - MAX_ROWS} more"

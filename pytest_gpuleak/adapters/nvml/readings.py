"""Read through nvidia-ml-py (module ``pynvml``) how much device memory each process holds.

NVML also sees memory outside torch's allocator and other processes' growth, so it is evidence and never a verdict.
Nothing here creates a context or sets anything. Unknown bytes are None, never 0.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.adapters.dependencies import import_dependency
from pytest_gpuleak.adapters.nvml.device_order import PhysicalDevice, match_devices
from pytest_gpuleak.adapters.nvml.process_identity import Family, Identity, own_identity
from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.model.readings import ProbeUnavailable
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_ABSENT = 1 << 63
"""Unsigned figures from here up are absent: NVML_VALUE_NOT_AVAILABLE (2**64 - 1), or a counter that fell below 0."""

NO_LIBRARY = "the NVIDIA driver's library is not installed (libnvidia-ml)"
MAX_NAME = 80


class ProcessMemory(NamedTuple):
    """One process's memory on a device. In a container `pid` may be the host's; unknown bytes and names are None."""

    pid: int
    bytes: int | None
    name: str | None = None


class NvmlReading(NamedTuple):
    """One device's memory in bytes as its driver counts it; None if unknown.

    `uuid` identifies the device in every process. `own` is 0 if the driver lists processes but not this one;
    `why_absent` says why it is None. `children` are descendants that hold memory, `others` all other processes.
    """

    uuid: str
    model: str
    total: int | None
    used: int | None
    own: int | None
    children: tuple[ProcessMemory, ...] = ()
    others: tuple[ProcessMemory, ...] = ()
    why_absent: str = ""


def outside(reading: NvmlReading, reserved: int) -> int | None:
    """Return this process's bytes outside torch's allocator; None if unknown, or below `reserved` (another's pid)."""
    return None if reading.own is None or reading.own < reserved else reading.own - reserved


class Nvml:
    """The driver's counters. `fault` says why reading ended during the run; it is empty unless the driver failed."""

    def __init__(self) -> None:
        self.fault = ""
        self._pynvml: Any = None
        self._devices: list[PhysicalDevice] = []
        self._handles: dict[str, Any] = {}
        self._logical: dict[str, str] = {}
        self._matched_for: object = None

    def start(self) -> None:
        """Open the driver's library. Raises ProbeUnavailable, with the reason, if nothing can be read."""
        if "pynvml" not in sys.modules and not _library_is_there():
            raise ProbeUnavailable(NO_LIBRARY)
        try:
            pynvml = import_dependency("pynvml")
        except ImportError:
            raise ProbeUnavailable("nvidia-ml-py is not installed") from None
        try:
            pynvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 - for some libraries the binding raises AttributeError or OSError
            raise ProbeUnavailable(_reason(pynvml, error)) from None
        self._pynvml = pynvml
        try:
            self._enumerate()
            reason = self._complaint()
        except Exception as error:  # noqa: BLE001 - as above
            reason = _reason(pynvml, error)
        if reason:
            self.stop()
            raise ProbeUnavailable(reason)

    def stop(self) -> None:
        """Close the library as often as it was opened here. Safe to call twice."""
        pynvml, self._pynvml = self._pynvml, None
        self._handles.clear()
        self._logical.clear()
        self._matched_for = None
        if pynvml is not None:
            try:
                pynvml.nvmlShutdown()
            except Exception:  # noqa: BLE001 - it is closed already
                return

    def read(self) -> dict[str, NvmlReading]:
        """Return the usable devices' readings by torch's name (``cuda:0``); empty if unknown. Never raises."""
        if self._pynvml is None:
            return {}
        try:
            try:
                return self._read_all()
            except self._pynvml.NVMLError as error:
                if error.value != self._pynvml.NVML_ERROR_UNINITIALIZED:
                    raise
                # Other code has closed the library more often than it opened it.
                self._pynvml.nvmlInit()
                self._enumerate()
                return self._read_all()
        except Exception as error:  # noqa: BLE001 - a device that fails must not end the run
            self.fault = f"NVML failed and is no longer read: {_reason(self._pynvml, error)}"
            self.stop()
            return {}

    def _enumerate(self) -> None:
        pynvml = self._pynvml
        self._devices, self._handles, self._matched_for = [], {}, None
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_NO_PERMISSION:
                    raise
                continue  # a device that the container was not given
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            bus = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
            parts = self._partitions(handle)
            model = clean_text(_text(pynvml.nvmlDeviceGetName(handle)), MAX_NAME)
            self._handles[uuid] = handle
            self._handles.update(parts or {})
            self._devices.append(PhysicalDevice(uuid, model, bus, None if parts is None else tuple(parts)))

    def _partitions(self, handle: Any) -> dict[str, Any] | None:
        pynvml = self._pynvml
        try:
            current, _ = pynvml.nvmlDeviceGetMigMode(handle)
            if current != pynvml.NVML_DEVICE_MIG_ENABLE:
                return None
            slots = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except pynvml.NVMLError:
            return None  # most devices cannot be partitioned
        parts = {}
        for slot in range(slots):
            try:
                part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
            except pynvml.NVMLError:
                continue  # an empty slot
            parts[_text(pynvml.nvmlDeviceGetUUID(part))] = part
        return parts

    def _complaint(self) -> str:
        if not self._devices:
            return "the NVIDIA driver shows no device"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if match_devices(self._devices, visible, os.environ.get("CUDA_DEVICE_ORDER")) == []:
            return f"no device is visible (CUDA_VISIBLE_DEVICES is {clean_text(repr(visible), MAX_NAME)})"
        return ""

    def _match(self) -> None:
        """Match indices to devices: by the framework's UUIDs once it has started CUDA, until then by CUDA's rules."""
        initialised = framework_uuids()
        variables = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
        key: object = variables if initialised is None else tuple(initialised)
        if key == self._matched_for:
            return
        self._matched_for = key
        guessed = match_devices(self._devices, *variables)
        if initialised is None:
            self._logical = {f"cuda:{index}": uuid for index, uuid in enumerate(guessed or ())}
            return
        self._logical = {}
        partitioned = {device.uuid: device.partitions for device in self._devices if device.partitions is not None}
        by_digits = {uuid.partition("-")[2].lower(): uuid for uuid in self._handles}
        for index, digits in enumerate(initialised):
            uuid = by_digits.get(digits.lower(), "")
            if uuid in partitioned:
                # CUDA gave the whole device's UUID for its part: take the part that CUDA would choose.
                uuid = next((part for part in guessed or () if part in partitioned[uuid]), "")
            if uuid:
                self._logical[f"cuda:{index}"] = uuid

    def _read_all(self) -> dict[str, NvmlReading]:
        self._match()
        identity = own_identity()
        models = {device.uuid: device.model for device in self._devices}
        for device in self._devices:
            models.update(dict.fromkeys(device.partitions or (), f"{device.model} (MIG)"))
        family = Family(identity.pids)
        return {name: self._read_device(uuid, models[uuid], identity, family) for name, uuid in self._logical.items()}

    def _read_device(self, uuid: str, model: str, identity: Identity, family: Family) -> NvmlReading:
        processes, refused = self._processes(self._handles[uuid])
        mine = next((pid for pid in identity.pids if pid in processes), None)
        own, why = (0, "") if mine is None else (processes[mine], "")
        if mine is None and (refused or not identity.visible):
            own, why = None, refused or identity.why
        elif own is None:
            why = "not visible: the driver gives no figure for a process"
        rows = [ProcessMemory(pid, processes[pid], family.name_of(pid)) for pid in sorted(processes) if pid != mine]
        children = tuple(row for row in rows if family.is_descendant(row.pid))
        others = tuple(row for row in rows if not family.is_descendant(row.pid))
        return NvmlReading(uuid, model, *self._totals(self._handles[uuid]), own, children, others, why)

    def _totals(self, handle: Any) -> tuple[int | None, int | None]:
        pynvml = self._pynvml
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as error:
            if error.value not in _refusals(pynvml):
                raise
            return None, None  # a device that shares the host's memory has none of its own
        return _figure(memory.total), _figure(memory.used)

    def _processes(self, handle: Any) -> tuple[dict[int, int | None], str]:
        pynvml = self._pynvml
        found: dict[tuple[int, int | None, int | None], int | None] = {}
        refused = ""
        for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
            try:
                rows = _ask_twice(pynvml, ask, handle)
            except pynvml.NVMLError as error:
                if error.value not in _refusals(pynvml):
                    raise
                if ask is pynvml.nvmlDeviceGetComputeRunningProcesses:
                    refused = "not visible: " + _reason(pynvml, error)
                continue
            for row in rows:
                # A process that computes and draws is in both lists, each time with all its memory.
                key = (row.pid, _figure(row.gpuInstanceId), _figure(row.computeInstanceId))
                size = _figure(row.usedGpuMemory)
                known = found.get(key)
                found[key] = size if known is None else known if size is None else max(known, size)
        by_pid: dict[int, int | None] = {}
        for (pid, _, _), size in found.items():
            # A sum with an unknown part is unknown.
            by_pid[pid] = size if pid not in by_pid else _sum(by_pid[pid], size)
        return by_pid, refused


def framework_uuids() -> list[str] | None:
    """Return the devices' UUIDs in the order of the first framework that has started CUDA; None if none has."""
    found = (framework.nvidia_uuids() for framework in own_frameworks().members)
    return next((uuids for uuids in found if uuids is not None), None)


def _library_is_there() -> bool:
    """Return whether the driver's library can be loaded, without the binding's slow import."""
    if not sys.platform.startswith("linux"):
        return True  # elsewhere only the binding knows the library's place
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _ask_twice(pynvml: Any, ask: Callable[[Any], Any], handle: Any) -> Any:
    """List processes; retry once if the list was too short because processes started meanwhile."""
    try:
        return ask(handle)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
            raise
        return ask(handle)


def _refusals(pynvml: Any) -> tuple[int, ...]:
    return (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION)


def _reason(pynvml: Any, error: Exception) -> str:
    if not isinstance(error, pynvml.NVMLError):
        return clean_text(f"{type(error).__name__}: {error}", 2 * MAX_NAME)
    words = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: NO_LIBRARY,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
        pynvml.NVML_ERROR_NO_PERMISSION: "no permission to ask the NVIDIA driver",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver and its library differ in version",
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the NVIDIA driver is too old",
        pynvml.NVML_ERROR_NOT_SUPPORTED: "the NVIDIA driver does not support it here",
        pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost",
    }
    try:
        return words.get(error.value) or clean_text(str(error), 2 * MAX_NAME)
    except Exception:  # noqa: BLE001 - the library supplies the text, and may itself have failed
        return f"NVML error {error.value}"


def _figure(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < FIRST_ABSENT else None


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

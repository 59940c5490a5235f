"""Read and hold JAX's arrays and tracers by their classes' own descriptors."""

from __future__ import annotations

from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters import buffer_protocol
from pytest_gpuleak.adapters.creation_lines import MAX_CODE_LENGTH, origin_at, printable
from pytest_gpuleak.adapters.jax.devices import device_name
from pytest_gpuleak.adapters.late import ArrayHandle
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.model.readings import TRACE, ArrayReading, MemoryRange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.model.source_files import Origin

MAX_LINES: Final = 2000
"""Arrays whose stacks are read: each takes 12 us, and a crowd's lines are taken from similar arrays."""

_HOST_MEMORY: Final = frozenset({"pinned_host", "unpinned_host"})
_MAX_NAMED: Final = 8

_WAITS_S: Final = (0.001, 0.002, 0.004, 0.008, 0.016)
"""Seconds to wait between looks at an array that is being computed."""


class ArrayReference(ArrayHandle):
    """A weak hold on an array: its memory goes when it is donated or deleted, though its Python object may stay."""

    __slots__ = ()

    def alive(self) -> bool:
        """Return whether the array still exists and has memory."""
        array = self.array()
        return array is not None and not _is_deleted(array)


def hold(array: object) -> ArrayReference:
    """Return a weak hold on an array."""
    return ArrayReference(id(array), array)


def read_many(arrays: Sequence[object]) -> list[ArrayReading | None]:
    """Return the metadata; None for an array without memory, or of a kind of memory that JAX does not size."""
    return [_read(array) for array in arrays]


def _read(array: Any) -> ArrayReading | None:
    try:
        if _is_deleted(array):
            return None
        names = safe_access.class_dict(type(array))
        aval, sharding = names["aval"].__get__(array), names["_sharding"].__get__(array)
        size = int(names["on_device_size_in_bytes"](array))  # of all shards in this process
        shape, dtype = tuple(map(int, aval.shape)), str(aval.dtype)
        devices = _devices(sharding)
    except Exception:  # noqa: BLE001 - tokens, extended dtypes, an array that another thread deletes now
        return None
    if size <= 0 or not devices:
        return None
    device, shards = _place(devices, getattr(sharding, "memory_kind", None), size)
    return ArrayReading(id(array), shape, dtype, device, size, id(array), size, shards)


def memory(array: Any) -> MemoryRange | None:
    """Return where the memory of an array on one device is; None for other arrays, and while it is being computed.

    ``unsafe_buffer_pointer()`` would make a further array, which stays. bfloat16 tells its place on a GPU alone.
    """
    names = safe_access.class_dict(type(array))
    is_ready = names["is_ready"]
    if _is_deleted(array) or len(names["_sharding"].__get__(array).device_set) != 1:
        return None
    for wait_s in _WAITS_S:
        if is_ready(array):
            break
        sleep(wait_s)
    else:
        return None  # to ask would wait until it is computed, which may be never
    found = buffer_protocol.memory_of(array)
    if found is not None:
        return found
    try:
        start = int(names["__cuda_array_interface__"].__get__(array)["data"][0])
        return MemoryRange(start, int(names["on_device_size_in_bytes"](array)))
    except Exception:  # noqa: BLE001 - an array that is on no GPU
        return None


def read_tracer(tracer: Any) -> ArrayReading | None:
    """Return a tracer's metadata, on the device `TRACE`."""
    aval = _attribute(tracer, "aval")
    shape: tuple[int, ...] = ()
    try:
        shape = tuple(map(int, aval.shape))
    except Exception:  # noqa: BLE001 - a symbolic dimension, or no shape at all
        shape = ()
    return ArrayReading(id(tracer), shape, str(getattr(aval, "dtype", "unknown")), TRACE, 0, id(tracer), 0)


def lines_of_arrays(arrays: Sequence[Any], is_user_file: Callable[[str], bool]) -> dict[int, Origin]:
    """Return the innermost user line on the stack of each array, as jaxlib has kept it."""
    return _lines(
        arrays, lambda one: _user_place(safe_access.class_dict(type(one))["traceback"].__get__(one), is_user_file)
    )


def lines_of_tracers(tracers: Sequence[Any], is_user_file: Callable[[str], bool]) -> dict[int, Origin]:
    """Return the user line that made each tracer; the function is the one that was traced, where JAX tells."""

    def place_of(tracer: Any) -> tuple[str, int, str] | None:
        place = _user_place(getattr(_attribute(tracer, "_line_info"), "traceback", None), is_user_file)
        traced = _traced_function(tracer, is_user_file)
        return None if place is None else (*place[:2], traced or place[2])

    return _lines(tracers, place_of)


def _lines(arrays: Sequence[Any], place_of: Callable[[Any], tuple[str, int, str] | None]) -> dict[int, Origin]:
    found: dict[int, Origin] = {}
    for array in arrays[:MAX_LINES]:
        with suppress(Exception):  # a line is evidence only
            place = place_of(array)
            if place is not None:
                file, line, function = place
                found[id(array)] = origin_at(file, line, function.rpartition(".")[2] or function)
    return found


def _is_deleted(array: Any) -> bool:
    return bool(safe_access.class_dict(type(array))["is_deleted"](array))


def _devices(sharding: Any) -> list[Any]:
    devices = [device for device in sharding.device_set if device.process_index == device.client.process_index()]
    return sorted(devices, key=lambda device: int(device.id))


def _place(devices: Sequence[Any], memory: object, size: int) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Return the memory's name, ``cpu`` for a divided CPU, and for several devices the bytes on each."""
    names = [device_name(device) for device in devices]
    each = size // len(devices)
    shards = tuple((name, each) for name in names) if len(names) > 1 else ()
    if memory in _HOST_MEMORY or all(device.platform == "cpu" for device in devices):
        return "cpu", shards
    if len(names) == 1:
        return names[0], ()
    numbers = [name.partition(":")[2] for name in names]
    shown = ",".join(numbers) if len(numbers) <= _MAX_NAMED else f"{numbers[0]}..{numbers[-1]}"
    return f"{names[0].partition(':')[0]}:{shown}", shards


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute that JAX's classes define as a slot, without the properties of a subclass."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def _traced_function(tracer: Any, is_user_file: Callable[[str], bool]) -> str:
    """Return the name of the user's traced function from ``train_step at app/train.py:12``; empty if unknown."""
    described = _attribute(tracer, "_debug_info")  # up to JAX 0.4
    if described is None:
        described = getattr(getattr(_attribute(tracer, "_trace"), "frame", None), "debug_info", None)
    text = getattr(described, "func_src_info", None)
    name, _, place = text.partition(" at ") if type(text) is str else ("", "", "")
    return printable(name)[:MAX_CODE_LENGTH] if is_user_file(place.rpartition(":")[0]) else ""


def _user_place(stack: Any, is_user_file: Callable[[str], bool]) -> tuple[str, int, str] | None:
    for frame in () if stack is None else stack.frames:
        if is_user_file(frame.file_name):
            return frame.file_name, int(frame.line_num), frame.function_name
    return None

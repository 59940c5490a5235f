"""Read and hold TensorFlow's eager tensors by their C class's descriptors, independently of `sys.modules`.

The key of a tensor's memory is the address of its numbers on the host, which `tf.reshape`, `tf.identity` and
`Variable.read_value` share. A variable's key is the id of its handle, since each `assign` gives it other memory.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.adapters.late import ArrayHandle
from pytest_gpuleak.adapters.tensorflow.lookup import CONTEXT, TENSORS, eager_context, loaded_names
from pytest_gpuleak.model.readings import ArrayReading, MemoryRange

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST = "cpu"
STRING = 7
RESOURCE = 20
VARIANT = 21

STRING_BYTES = 24
"""Bytes of a string's header, which has up to 22 bytes in it; longer strings have memory of their own (tstring.h)."""
_SIZES = frozenset((int,))


class ElementType(NamedTuple):
    """Name of an element type and bytes of an element."""

    name: str
    size: int


_KNOWN: dict[int, ElementType | None] = {STRING: ElementType("string", STRING_BYTES), RESOURCE: None, VARIANT: None}


def element_type(number: int) -> ElementType | None:
    """Return an element type by its number; None if TensorFlow does not know it or its size."""
    if number not in _KNOWN:
        namespace: dict[str, Any] = loaded_names("tensorflow.python.framework.dtypes")
        found = namespace["as_dtype"](number)
        _KNOWN[number] = ElementType(str(found.name), int(found.size)) if found.size else None
    return _KNOWN[number]


class _Facts(NamedTuple):
    """A tensor's metadata. `shape` is None for a variable of unknown shape."""

    kind: int
    shape: tuple[int, ...] | None
    elements: ElementType
    device: str


def storage(array: object) -> int:
    """Return the address of a tensor's numbers on the host; the id where they are elsewhere, or not plain numbers."""
    try:
        facts = _facts(array)
        return (None if facts is None else _address(array, facts)) or id(array)
    except Exception:  # noqa: BLE001 - a tensor that TensorFlow cannot describe: nothing is known to share it
        return id(array)


def hold(array: object) -> ArrayHandle:
    """Return a weak hold on a tensor."""
    return ArrayHandle(storage(array), array)


def storage_users(array: object) -> int | None:
    """Return 1 where the key is the tensor's own id, as for a variable; None where others may share the address."""
    return 1 if storage(array) == id(array) else None


def read_many(arrays: Sequence[object]) -> list[ArrayReading | None]:
    """Return the metadata of each tensor; None for tensors without memory of a known size."""
    own = _kept_by_context()
    values, variables = dict[int, int](), list[int]()
    readings: list[ArrayReading | None] = []
    for index, array in enumerate(arrays):
        reading = None
        if id(array) not in own:
            try:
                facts = _facts(array)
                reading = None if facts is None else _read(array, facts)
            except Exception:  # noqa: BLE001 - a tensor that TensorFlow cannot describe has no memory of a known size
                facts = None
            if reading is not None and facts is not None and facts.device == HOST:
                if facts.kind == RESOURCE:
                    variables.append(index)
                elif reading.storage != id(array):
                    values[index] = reading.storage
        readings.append(reading)
    if values and variables:
        _join(arrays, readings, values, variables)
    return readings


def memory(array: object) -> MemoryRange | None:
    """Return where a tensor's or a variable's numbers are on the host; None for strings and other devices."""
    facts = _facts(array)
    if facts is None or facts.device != HOST:
        return None
    is_variable = facts.kind == RESOURCE
    start = _address_of_value(array, facts.elements.name) if is_variable else _address(array, facts)
    return MemoryRange(start, facts.elements.size * prod(facts.shape)) if start and facts.shape is not None else None


def _join(
    arrays: Sequence[object], readings: list[ArrayReading | None], values: dict[int, int], variables: list[int]
) -> None:
    """Give tensors that are the value of one of the variables the variable's key."""
    wanted = {(reading.shape, reading.dtype) for index in values if (reading := readings[index]) is not None}
    owners: dict[int, int] = {}
    for index in variables:
        reading = readings[index]
        if reading is not None and (reading.shape, reading.dtype) in wanted:
            address = _address_of_value(arrays[index], reading.dtype)
            if address:
                owners[address] = reading.storage
    for index, address in values.items():
        reading, owner = readings[index], owners.get(address)
        if reading is not None and owner is not None:
            readings[index] = reading._replace(storage=owner)


def _facts(array: Any) -> _Facts | None:
    cls: Any = TENSORS.get()
    kind = int(cls._datatype_enum(array))
    if kind == VARIANT:
        return None
    device = device_name(cls.device.__get__(array))
    if kind != RESOURCE:
        elements = element_type(kind)
        return None if elements is None else _Facts(kind, tuple(cls._shape_tuple(array)), elements, device)
    data = cls._handle_data.__get__(array)
    parts = list(data.shape_and_type) if data is not None and data.is_set else []
    elements = element_type(int(parts[0].dtype)) if parts else None
    if elements is None:
        return None  # an iterator, a table: Python does not know the size
    shape = parts[0].shape
    sizes = None if shape.unknown_rank else tuple(int(one.size) for one in shape.dim)
    return _Facts(kind, None if sizes is None or min(sizes, default=0) < 0 else sizes, elements, device)


def _read(array: object, facts: _Facts) -> ArrayReading | None:
    shape = facts.shape
    if shape is None:
        value = _value_of(array, facts.elements.name) if facts.device == HOST else None
        cls: Any = TENSORS.get()
        shape = (None if value is None else tuple(cls._shape_tuple(value))) or (1,)
    size = facts.elements.size * prod(shape)
    if size <= 0:
        return None
    key = _address(array, facts) or id(array)
    return ArrayReading(id(array), shape, facts.elements.name, facts.device, size, key, size)


def _address(array: object, facts: _Facts) -> int | None:
    """Return where a tensor's numbers are; None unless they are plain numbers on the host, which costs no copy."""
    if facts.kind in (RESOURCE, STRING) or facts.device != HOST:
        return None
    cls: Any = TENSORS.get()
    return _address_of(cls._numpy_internal(array))


def _address_of(numbers: Any) -> int | None:
    return int(numbers.__array_interface__["data"][0]) if numbers.size else None


def _address_of_value(handle: object, dtype: str) -> int | None:
    cls: Any = TENSORS.get()
    value = _value_of(handle, dtype)
    return None if value is None else _address_of(cls._numpy_internal(value))


def _value_of(handle: object, dtype: str) -> Any:
    """Read a variable on the host, which copies nothing, unseen by gradient tapes and by callbacks of operations.

    None for a variable without a value.
    """
    context = eager_context()
    wrapper = loaded_names("tensorflow.python.pywrap_tfe")
    types = loaded_names("tensorflow.python.framework.dtypes")
    local = None if context is None else vars(context).get("_thread_local_data")
    if local is None or not local.is_eager or local.op_callbacks:
        return None
    wrapper["TFE_Py_TapeSetStopOnThread"]()
    try:
        return wrapper["TFE_Py_FastPathExecute"](
            context, "ReadVariableOp", None, handle, "dtype", types["as_dtype"](dtype)
        )
    except Exception:  # noqa: BLE001 - a variable without a value shares nothing
        return None
    finally:
        wrapper["TFE_Py_TapeSetRestartOnThread"]()


def _kept_by_context() -> set[int]:
    """Return the ids of the small constants that TensorFlow itself caches for the life of its context."""
    namespace = loaded_names(CONTEXT)
    found: set[int] = set()
    try:
        for caches in list(namespace["_tensor_caches_map"].values()):
            for name in ("_ones_rank_cache", "_zeros_cache"):
                cache = getattr(caches, name, None)  # of this thread, in a slot
                if cache is not None:
                    found.update(map(id, list(cache._data.values())))
    except Exception:  # noqa: BLE001 - another version's caches: their tensors are read as others are
        return found
    return found


def device_name(full: str) -> str:
    """Return ``cpu`` or ``gpu:0`` for ``/job:localhost/replica:0/task:0/device:GPU:0``: TensorFlow's own numbering."""
    _, _, device = full.rpartition("device:")
    kind, _, index = device.lower().partition(":")
    return HOST if kind in ("", HOST) else f"{kind}:{index or 0}"

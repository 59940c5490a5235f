"""Check and copy the answers of a framework that is not the plugin's own: plain data, or an error that says what is accepted."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pytest_gpuleak.adapters.probe_protocol import DeviceReading
from pytest_gpuleak.heap.hidden_references import Link
from pytest_gpuleak.heap.safe_access import is_subclass
from pytest_gpuleak.model.findings import Autograd, Contribution
from pytest_gpuleak.model.readings import HOST, ArrayReading, DeviceSpace
from pytest_gpuleak.model.source_files import Origin
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_T = TypeVar("_T")

TEXT_LIMIT: Final = 200
"""Characters of a framework's text that are kept."""

_BYTES: Final = "a number of bytes, 0 or more"


class WrongAnswer(TypeError):  # noqa: N818 - its message gives the value returned and the values accepted
    """Raised when a framework's method returns a value that is not accepted."""


def complete(value: _T, methods: Sequence[str], error: type[TypeError] = TypeError) -> _T:
    """Return an object that has these methods. Raises `error` for any other."""
    missing = [name for name in methods if not callable(getattr(value, name, None))]
    if missing:
        raise error(f"{type(value).__name__} has no {' and no '.join(missing)}")
    return value


def shown(value: object) -> str:
    """Return a value as text for an error: numbers and short texts as they are, else the type."""
    if value is None or type(value) in (int, float, bool):
        return repr(value)
    if type(value) is str:
        return repr(value[:60])
    if is_subclass(type(value), type):
        return f"the class {type.__dict__['__name__'].__get__(value)}"
    return f"an object of type {type(value).__name__}"


# Each of these returns what it is given, checked, and raises WrongAnswer for what it does not accept.


def of_type(value: Any, kind: type) -> Any:
    """Accept an object of exactly this type, or whose class has its name: it may come from another copy of this package."""
    if type(value) is not kind and type.__dict__["__qualname__"].__get__(type(value)) != kind.__qualname__:
        raise WrongAnswer(f"returned {shown(value)}, accepted is a {kind.__name__}")
    return value


def text_of(value: object) -> str:
    """Accept a `str`."""
    if type(value) is not str:
        raise WrongAnswer(f"returned {shown(value)}, accepted is a text")
    return value


def clean(value: object) -> str:
    """Accept a `str`; return it in one line of at most `TEXT_LIMIT` characters."""
    return clean_text(text_of(value), TEXT_LIMIT)


def truth(value: object) -> bool:
    """Accept a `bool`."""
    return bool(of_type(value, bool))


def whole(value: object, accepted: str = "a number", least: int | None = None) -> int:
    """Accept a number from `least` on; return it as an `int`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type] # an object without an index raises
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise WrongAnswer(f"returned {shown(value if number is None else number)}, accepted is {accepted}")
    return number


def whole_or_none(value: object) -> int | None:
    """Accept a number, or None."""
    return None if value is None else whole(value, "a number or None")


def size_of(value: object) -> int:
    """Accept a number of bytes or objects, 0 or more."""
    return whole(value, "a number, 0 or more", least=0)


def size_or_none(value: object) -> int | None:
    """Accept a size, or None."""
    return None if value is None else size_of(value)


def class_of_arrays(value: object) -> type | None:
    """Accept a class, or None. With `object`, everything that a test creates would be an array."""
    if value is not None and (not is_subclass(type(value), type) or value is object):
        raise WrongAnswer(f"returned {shown(value)}, accepted are a class of arrays and None")
    return value  # type: ignore[return-value] # by its metaclass


def lines(value: Mapping[Any, Any]) -> dict[int, Origin]:
    """Accept creating lines by a number."""
    return {whole(key): origin for key, origin in value.items() if type(origin) is Origin}


def reading_of(array: object, reading: Any) -> ArrayReading | None:
    """Accept an array's metadata, or None; return plain data without references to the framework's objects."""
    if reading is None:
        return None
    of_type(reading, ArrayReading)
    if not is_subclass(type(reading.shape), tuple):
        raise WrongAnswer(f"returned the shape {shown(reading.shape)}, accepted is a tuple of sizes")
    return ArrayReading(
        identity=id(array),
        shape=tuple(whole(size, "a tuple of sizes") for size in reading.shape),
        dtype=text_of(reading.dtype),
        device=text_of(reading.device),
        bytes=whole(reading.bytes, _BYTES, least=0),
        storage=whole(reading.storage),
        storage_bytes=whole(reading.storage_bytes, _BYTES, least=0),
        shards=tuple((text_of(device), whole(size, _BYTES, 0)) for device, size in reading.shards),
        pending=getattr(reading, "pending", False) is True,
    )


def device_readings(value: Any) -> dict[str, DeviceReading]:
    """Accept the readings of devices by their names."""
    found = {}
    for device, reading in of_type(value, dict).items():
        allocated, *others = of_type(reading, DeviceReading)
        found[device_name(device)] = DeviceReading(size_of(allocated), *map(size_or_none, others))
    return found


def device_name(value: object) -> str:
    """Accept the name of a device that is not the host."""
    text = text_of(value)
    if not text or text in (HOST, "cpu") or clean_text(text, TEXT_LIMIT) != text:
        raise WrongAnswer(f"returned the device {shown(value)}, accepted is a name such as 'gpu:0'")
    return text


def space(value: Any) -> DeviceSpace | None:
    """Accept the space on a device, or None."""
    return None if value is None else DeviceSpace(*map(size_or_none, of_type(value, DeviceSpace)))


def graph(value: Any) -> Autograd | None:
    """Accept the size of a graph, or None."""
    if value is None:
        return None
    size = of_type(value, Autograd)
    return Autograd(size_of(size.nodes), size_of(size.saved_tensors), size_of(size.saved_bytes), cut=size.cut is True)


def blocks(value: Any) -> tuple[Contribution, ...] | None:
    """Accept the blocks that a device's allocator lent, or None."""
    if value is None:
        return None
    return tuple(map(_block, value))


def _block(value: Any) -> Contribution:
    part = of_type(value, Contribution)
    created = part.created if type(part.created) is Origin else None
    return Contribution(clean(part.text), size_of(part.bytes), size_of(part.count), created)


def ids(value: Any) -> set[int]:
    """Accept ids of objects."""
    return {whole(one, "a set of ids") for one in value}


def lists(value: Any) -> list[list[Any]]:
    """Accept lists."""
    return [of_type(one, list) for one in value]


def links(value: Any) -> list[Link]:
    """Accept references from parents to children."""
    found = [of_type(link, Link) for link in value]
    return [Link(link.parent, link.child, None if link.edge is None else clean(link.edge)) for link in found]

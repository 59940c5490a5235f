"""Check plain values against the dataclasses of the model, driven by their type hints: a file may come from anyone.

Integers fit into 64 bits and floats are finite, so that every renderer can write them. Unknown keys are ignored.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from typing import TYPE_CHECKING, Any, Literal, Union

from pytest_gpuleak.model.devices import DeviceWait
from pytest_gpuleak.model.finding_codec import with_baseline_status
from pytest_gpuleak.model.findings import Contribution, Finding, FixtureRecord, KnownLeak
from pytest_gpuleak.model.helpers import HelperReading
from pytest_gpuleak.model.peak_parts import Peak
from pytest_gpuleak.model.source_files import Origin
from pytest_gpuleak.model.text import clean_text, shorten_middle

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[object], Any]

_LARGEST = 2**63 - 1

MAX_DEPTH = 50
"""Levels of lists and objects in a value of free form."""

_FINGERPRINT = re.compile(r"[0-9a-f]{1,128}", re.ASCII)
_SCOPES = Literal["function", "class", "module", "package", "session"]
_SHOWN = 60

_LEAST = {"line": 1, "count": 0, "bytes": 0, "bytes_per_run": 0, "storage_bytes": 0, "deciding": 0, "nodes": 0}
_LEAST |= {"saved_tensors": 0, "saved_bytes": 0, "runs": 0}


class WrongValueError(ValueError):
    """Raised for a wrong value; the message tells its place (`where`: ``tests[3].line``) and what is accepted."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.where = ""

    def at(self, place: str) -> WrongValueError:
        """Extend the place by an outer `.key` or `[index]`."""
        self.where = place + self.where
        return self

    def __str__(self) -> str:
        return f"{shorten_middle(self.where.lstrip('.'), 2 * _SHOWN)} {self.args[0]}".lstrip()


def check(kind: Any, value: object, place: str | int) -> Any:
    """Check a value at a key or index against a type hint, and build its dataclasses. Raises WrongValueError."""
    return _nested(_checker(kind), value, place)


def _nested(inner: Check, value: object, place: str | int) -> Any:
    try:
        return inner(value)
    except WrongValueError as error:
        raise error.at(f"[{place}]" if isinstance(place, int) else f".{clean_text(place, _SHOWN)}") from None


def _check_plain(value: object, depth: int = 0) -> Any:
    """Return a JSON value unchanged if its numbers and depth are within bounds. Raises WrongValueError."""
    if depth > MAX_DEPTH:
        raise WrongValueError(f"is nested too deep: more than {MAX_DEPTH} levels")
    inner = functools.partial(_check_plain, depth=depth + 1)
    if isinstance(value, dict):
        _mapping(inner)(value)
    elif isinstance(value, list):
        _list(inner)(value)
    elif isinstance(value, int):
        _integer(int(value))  # true and false are accepted too
    elif isinstance(value, float):
        _number(value)
    return value


def check_usage(value: object) -> dict[str, Any]:
    """Check the memory of a summary, as `model.summary` describes it. Missing keys pass. Raises WrongValueError."""
    place = "summary.memory"
    found: dict[str, Any] = check(dict[str, Any], value, place)
    for name, kind in _USAGE.items():
        if name in found:
            found[name] = check(kind, found[name], f"{place}.{name}")
    if "heaviest" in found:
        found["heaviest"] = [vars(entry) for entry in found["heaviest"]]
    return found


@dataclasses.dataclass
class _Heavy:
    nodeid: str
    device: str
    bytes: int
    what: str


_USAGE: dict[str, Any] = {"drift": dict[str, dict[str, int]], "peaks": dict[str, int], "heaviest": tuple[_Heavy, ...]}


def describe_value(value: object) -> str:
    """Describe a wrong value, short and without control characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return "a number of more than 64 bits"  # Python limits the digits it writes
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return clean_text(repr(value), _SHOWN)


def _wrong(value: object, accepted: str) -> WrongValueError:
    return WrongValueError(f"is {describe_value(value)}, which is not {accepted}")


@functools.cache
def _checker(kind: Any) -> Check:  # noqa: PLR0911 - a return for each kind of type
    if kind is Any:
        return functools.partial(_check_plain, depth=1)  # the item of a mapping
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _record(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return _choice(arguments)
    if origin in (Union, types.UnionType):
        (other,) = (argument for argument in arguments if argument is not type(None))
        inner = _checker(other)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _list(_checker(arguments[0]))
    if origin is dict:
        return _mapping(_checker(arguments[1]))
    raise TypeError(f"no check for {kind!r}")


def _record(kind: type[Any]) -> Check:
    # The records name these types without importing them.
    hints = typing.get_type_hints(
        kind,
        localns={
            "DeviceWait": DeviceWait,
            "Finding": Finding,
            "FixtureRecord": FixtureRecord,
            "HelperReading": HelperReading,
            "KnownLeak": KnownLeak,
            "Origin": Origin,
            "Peak": Peak,
        },
    )
    fields = [
        (name, _limited(kind, name, hints[name]), required)
        for name, required in _fields(kind)
        if (kind, name) != (Finding, "baseline")  # a line of the evidence
    ]

    def one(value: object) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        found = {}
        for name, inner, required in fields:
            if name in value:
                found[name] = _nested(inner, value[name], name)
            elif required:
                raise WrongValueError("is missing").at("." + name)
        built = kind(**found)
        return with_baseline_status(built) if kind is Finding else built

    return one


def _fields(kind: type[Any]) -> list[tuple[str, bool]]:
    if hasattr(kind, "_fields"):
        return [(name, name not in kind._field_defaults) for name in kind._fields]
    missing = dataclasses.MISSING
    return [
        (field.name, field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(kind)
    ]


def _limited(kind: type[Any], name: str, hint: Any) -> Check:
    if name == "fingerprint":
        return _fingerprint
    if (kind, name) == (FixtureRecord, "scope"):
        return _checker(_SCOPES)
    inner = _checker(hint)
    least = None if kind is Contribution else _LEAST.get(name)
    if name == "shape":
        inner = _list(_at_least(0, _integer))
    return inner if least is None else _at_least(least, inner)


def _at_least(least: int, inner: Check) -> Check:
    def one(value: object) -> Any:
        found = inner(value)
        if found is not None and found < least:
            raise _wrong(value, f"a number from {least}")
        return found

    return one


def _fingerprint(value: object) -> str:
    if isinstance(value, str) and _FINGERPRINT.fullmatch(value):
        return value
    raise _wrong(value, "a fingerprint: up to 128 hexadecimal digits")


def _choice(accepted: tuple[Any, ...]) -> Check:
    def one(value: object) -> Any:
        if isinstance(value, str) and value in accepted:
            return accepted[accepted.index(value)]  # share one string among all records
        raise _wrong(value, "one of " + ", ".join(accepted))

    return one


def _list(inner: Check) -> Check:
    def one(value: object) -> Any:
        if not isinstance(value, list):
            raise _wrong(value, "a list")
        return tuple([_nested(inner, item, index) for index, item in enumerate(value)])

    return one


def _mapping(inner: Check) -> Check:
    def one(value: object) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        return {key: _nested(inner, item, key) for key, item in value.items()}

    return one


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise _wrong(value, "text")


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong(value, "true or false")


def _integer(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST:
        return value
    raise _wrong(value, "a whole number of at most 64 bits")


def _number(value: object) -> float:
    """Check a number. Null, which a report has where nothing was measured, is 0."""
    if value is None:
        return 0.0
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return float(value)  # NaN and infinity fail the comparison
    raise _wrong(value, "a number")


_SIMPLE: dict[Any, Check] = {str: _text, bool: _switch, int: _integer, float: _number}

"""Define the kinds of values that options and markers take: what each accepts, and how it is parsed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.adapters.host.modes import NAMES as HOST_PROBES
from pytest_gpuleak.model.text import parse_number, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuleak.session.options import Option

_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_SHOWN = 80
"""Characters of a bad value that its error shows."""
_MAX_COUNT = 2**63 - 1
LONGEST_WAIT_S = 3600
"""Seconds that a test may be waited for at most: an hour. What takes longer does not come by waiting."""

MAX_PERCENT = 9999


class Kind(NamedTuple):
    """A kind of value: `accepts` ends a usage error; `parse` reads text, or a marker's or TOML's value, or raises."""

    accepts: str
    parse: Callable[[object], Any]


def _parse_count(value: object) -> int:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT:
        return int(value)
    raise ValueError("not a count")


def choice(*choices: str) -> Kind:
    """Make the kind of a value that is one of a few words."""

    def parse(value: object) -> str:
        if isinstance(value, str) and value.strip() in choices:
            return value.strip()
        raise ValueError("not a choice")

    return Kind("one of " + ", ".join(map(repr, choices)), parse)


def _parse_switch(value: object) -> bool:
    try:
        return _SWITCHES[str(value).strip().lower()]
    except KeyError:
        raise ValueError("not a switch") from None


def _parse_limit(value: object) -> int | None:
    return None if _is_off(value) else parse_size(value)


def _parse_wait(value: object) -> float | None:
    seconds = None if _is_off(value) else parse_number(value)
    if seconds is not None and seconds > LONGEST_WAIT_S:
        raise ValueError("too long")
    return seconds or None


def _parse_percent(value: object) -> float:
    """Read a percentage as a share."""
    if isinstance(value, str):
        value = value.strip().removesuffix("%").strip()
    percent = parse_number(value)
    if percent > MAX_PERCENT:
        raise ValueError("too much")
    return percent / 100


def _is_off(value: object) -> bool:
    return isinstance(value, str) and value.strip().lower() == "off"


def _parse_modes(value: object) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if isinstance(names, list) and len(names) == 1 and _is_off(names[0]):
        return ()
    if isinstance(names, list) and names and all(type(name) is str and name in HOST_PROBES for name in names):
        return tuple(dict.fromkeys(names))
    raise ValueError("not modes")


def _parse_path(value: object) -> str | None:
    if _is_off(value):
        return None
    if isinstance(value, str) and value.strip() and "\0" not in value:
        return value
    raise ValueError("not a path")


def _parse_paths(value: object) -> list[str]:
    paths = [line.strip() for line in value.splitlines() if line.strip()] if isinstance(value, str) else value
    if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
        return paths
    raise ValueError("not paths")


def _parse_reason(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError("not a reason")


_SIZES = "a number of MiB from 0, or a size in B, KiB, MiB, GiB or TiB such as '512KiB'"

SIZE = Kind(_SIZES, parse_size)
REASON = Kind('a text that is not empty: reason="..."', _parse_reason)

_KINDS = {
    "count": Kind(f"a whole number from 0 to {_MAX_COUNT}", _parse_count),
    "size": SIZE,
    "limit": Kind(f"'off', or {_SIZES}", _parse_limit),
    "seconds": Kind("a number of seconds from 0", parse_number),
    "wait": Kind(f"'off', or a number of seconds from 0 to {LONGEST_WAIT_S}", _parse_wait),
    "percent": Kind(f"a percentage from 0 to {MAX_PERCENT}, such as '2%'", _parse_percent),
    "modes": Kind(f"'off', or of {', '.join(map(repr, HOST_PROBES))} one or, with commas, several", _parse_modes),
    "switch": Kind("true or false", _parse_switch),
    "folder": Kind("'off', or the path of a folder", _parse_path),
    "file": Kind("'off', or the path of a file", _parse_path),
    "paths": Kind("a path, or a list of paths", _parse_paths),
}


def kind_of(option: Option) -> Kind:
    """Find the kind of an option's value, which the table of options names or, for a choice, spells out."""
    return _KINDS[option.kind] if isinstance(option.kind, str) else choice(*option.kind)


def why_not_accepted(arguments: Mapping[str, object], known: Mapping[str, Kind]) -> str | None:
    """Tell why a marker's arguments are not accepted: the first bad argument; None where all are accepted."""
    for name, given in arguments.items():
        if name not in known:
            return f"unknown argument {name}={show(given)}, accepted are: {', '.join(known)}"
        try:
            known[name].parse(given if _is_plain(given) else _STRANGER)
        except ValueError:
            return f"{name}={show(given)} is not accepted, only {known[name].accepts}"
    return None


_STRANGER = object()
"""Replaces a user's object for a parser, which must not run user code."""


def _is_plain(value: object) -> bool:
    # isinstance would ask a user's object for its __class__, which may run any code.
    return value is None or bool({str, int, float} & {*type(value).__mro__})


def show(value: object) -> str:
    """Write a value for a usage error, cut; for a user's object its type, since its repr is user code."""
    plain = (type(None), bool, int, float, str)
    parts = value if type(value) is list and value else [value]
    if any(type(part) not in plain for part in parts):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

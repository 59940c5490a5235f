"""The kinds of values that options and markers take: what each accepts, and how it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.model.sizes import parse_number, parse_size
from pytest_gpuleak.session.config.options import METAVARS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_SHOWN = 80
"""Characters of a bad value that its error shows."""


class Kind(NamedTuple):
    """A kind of value: its placeholder in the help, what is accepted, and its parser.

    The parser takes text, or the number or bool that a marker or TOML gives, and raises ValueError.
    """

    metavar: str
    accepts: str
    parse: Callable[[object], Any]


def _parse_count(value: object) -> int:
    if isinstance(value, (int, str)) and "." not in str(value):
        return int(parse_number(value))
    raise ValueError("not a count")


def choice(*choices: str) -> Kind:
    """The kind of a value that is one of a few words."""

    def parse(value: object) -> str:
        if isinstance(value, str) and value.strip() in choices:
            return value.strip()
        raise ValueError("not a choice")

    return Kind("|".join(choices), "one of " + ", ".join(map(repr, choices)), parse)


def _parse_switch(value: object) -> bool:
    try:
        return _SWITCHES[str(value).strip().lower()]
    except KeyError:
        raise ValueError("not a switch") from None


def _parse_limit(value: object) -> int | None:
    return None if _is_off(value) else parse_size(value)


def _is_off(value: object) -> bool:
    return isinstance(value, str) and value.strip().lower() == "off"


HOST_MODES = ("heap", "tracemalloc", "pympler", "rss")
"""What `--gpu-leak-host` takes beside ``off``, several with commas."""


def _parse_modes(value: object) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if isinstance(names, list) and len(names) == 1 and _is_off(names[0]):
        return ()
    if isinstance(names, list) and names and all(type(name) is str and name in HOST_MODES for name in names):
        return tuple(dict.fromkeys(names))
    raise ValueError("not modes")


def _parse_place(value: object) -> str | None:
    if _is_off(value):
        return None
    if isinstance(value, str) and value.strip() and "\0" not in value:
        return value
    raise ValueError("not a path")


def _parse_paths(value: object) -> list[str]:
    paths = [line.strip() for line in value.splitlines() if line.strip()] if isinstance(value, str) else value
    if isinstance(paths, list) and all(isinstance(path, str) and path for path in paths):
        return paths
    raise ValueError("not paths")


def parse_reason(value: object) -> str:
    """Read a text that says something. Raises ValueError for anything else."""
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError("not a reason")


SWITCH = Kind("BOOL", "true or false", _parse_switch)
PATHS = Kind("PATH", "a path, or a list of paths", _parse_paths)

_SIZES = "a number of MiB from 0, or a size in B, KiB, MiB, GiB or TiB such as '512KiB'"

KINDS = {
    "count": Kind(METAVARS["count"], "a whole number from 0", _parse_count),
    "size": Kind(METAVARS["size"], _SIZES, parse_size),
    "limit": Kind(METAVARS["limit"], f"'off', or {_SIZES}", _parse_limit),
    "modes": Kind(
        METAVARS["modes"],
        "'off', or of " + ", ".join(map(repr, HOST_MODES)) + " one or, with commas, several",
        _parse_modes,
    ),
    "switch": SWITCH,
    "folder": Kind(METAVARS["folder"], "'off', or the path of a folder", _parse_place),
    "file": Kind(METAVARS["file"], "'off', or the path of a file", _parse_place),
    "seconds": Kind(METAVARS["seconds"], "a number of seconds from 0", parse_number),
    "cycles": choice(*METAVARS["cycles"].split("|")),
    "scan": choice(*METAVARS["scan"].split("|")),
}
"""Every kind that an option of `options` has, by its name there."""


def complaint_of(arguments: Mapping[str, object], known: Mapping[str, Kind]) -> str | None:
    """Why a marker's arguments are not accepted: the first that is not, its value and what is. None where all are.

    Args:
        arguments: the values by name.
        known: the kinds of the arguments that the marker takes.
    """
    for name, given in arguments.items():
        if name not in known:
            return f"unknown argument {name}={show(given)}, accepted are: {', '.join(known)}"
        try:
            known[name].parse(given if _is_plain(given) else _STRANGER)
        except ValueError:
            return f"{name}={show(given)} is not accepted, only {known[name].accepts}"
    return None


_STRANGER = object()
"""What a parser sees of an object of the user's: nothing."""


def _is_plain(value: object) -> bool:
    # Not isinstance: it would ask a stranger for its __class__, which may do or raise anything.
    return value is None or bool({str, int, float} & {*type(value).__mro__})


def show(value: object) -> str:
    """Write a value for a usage error, cut; of what is no plain value, its type."""
    # The repr of a stranger is the user's code, and may be anything.
    plain = (type(None), bool, int, float, str)
    parts = value if type(value) is list and value else [value]
    if any(type(part) not in plain for part in parts):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

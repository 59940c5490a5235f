"""Options, ini values and markers, read into one frozen `Policy` per test.

Each option is described once, in `options.ROWS`; the command line, the ini, the marker's arguments and the text of
every usage error follow from that table and the kinds of values here. Precedence, for each option by itself: the
closest `gpu_leak` marker, the command line, the ini, the default.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from pytest_gpuleak.options import METAVARS, ROWS, add_options, command_line, ini_value, is_enabled, register_markers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

__all__ = [
    "OPTIONS", "Option", "Policy", "Settings", "add_options", "check_markers", "describe", "is_enabled", "parse_size",
    "policy_of", "read_settings", "register_markers",
]  # fmt: skip

MIB = 1024 * 1024
"""Bytes in one MiB, the unit of a size given as a plain number."""

POLICY_MARKER = "gpu_leak"
ALLOW_MARKER = "allow_gpu_leak"

# GPU tools, and this plugin's own `-mb` options, say MB and count in 1024s: so does a size written with it.
_UNITS: dict[str, int] = {
    "b": 1,
    **{prefix + end: 1024**power for power, prefix in enumerate("kmgt", 1) for end in ("ib", "b")},
}
_SIZE = re.compile(r"([\d.]+)\s*([a-z]+)", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)
_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_SHOWN = 80
"""Characters of a bad value that its error shows."""


class Policy(NamedTuple):
    """What one test may leave behind, and how that is found out.

    Attributes:
        growing_tensors: arrays it may leave behind growing; None: growth is judged by bytes alone.
        growing_bytes: bytes per device it may leave behind growing; None: growth is judged by tensors alone.
        retained_bytes: residue that does not grow fails from here up, in bytes per device.
        confirm: re-runs of a suspect; 0: the first run alone decides.
        confirm_limit_s: seconds; a suspect that took longer is not run again.
        cycles: what becomes of memory that only the cyclic collector freed.
        scan: how arrays left behind are found: by epochs of the collector, or by a scan of the heap.
        allowed: the reason given to `allow_gpu_leak`; None: findings fail.
    """

    growing_tensors: int | None = 0
    growing_bytes: int | None = 0
    retained_bytes: int = MIB
    confirm: int = 1
    confirm_limit_s: float = 60.0
    cycles: Literal["ignore", "note", "fail"] = "note"
    scan: Literal["epoch", "scan"] = "epoch"
    allowed: str | None = None


class Settings(NamedTuple):
    """What one run was asked for.

    Attributes:
        enabled: whether tests are checked.
        policy: the policy of tests without a marker.
        report_paths: absolute paths of the reports to write; empty in an xdist worker, which writes none.
        named: values given on the command line or in the ini, by the option's name, which a marker adds to.
    """

    enabled: bool
    policy: Policy
    report_paths: tuple[Path, ...] = ()
    named: Mapping[str, Any] = MappingProxyType({})


class _Kind(NamedTuple):
    """A kind of value: its placeholder in the help, what is accepted, and its parser.

    The parser takes text, or the number or bool that a marker or TOML gives, and raises ValueError.
    """

    metavar: str
    accepts: str
    parse: Callable[[object], Any]


class Option(NamedTuple):
    """One option, wherever it may be given.

    Attributes:
        name: the marker's argument; `--gpu-leak-NAME` and `gpu_leak_NAME` derive from it.
        target: the field of `Policy` that it sets.
        kind: the kind of its value.
        default: the default, as a user would write it.
        help: what it does.
        marker: whether the `gpu_leak` marker takes it.
    """

    name: str
    target: str
    kind: _Kind
    default: str
    help: str
    marker: bool = True

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--gpu-leak-" + self.name.replace("_", "-")

    @property
    def ini(self) -> str:
        """Its name in the ini, and its attribute of `config.option`."""
        return "gpu_leak_" + self.name


def parse_size(value: object) -> int:
    """Read a size, in bytes: a number of MiB, or text with a unit, such as `"512KiB"` or `"1.5 GiB"`.

    Units are B, KiB, MiB, GiB and TiB, in upper or lower case; KB, MB, GB and TB mean the same, powers of 1024, as a
    plain number does in an option named `mb`. A fraction of a byte is rounded. Raises ValueError for anything else,
    negative and infinite sizes included.
    """
    unit = MIB
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        if match[2].lower() not in _UNITS:
            raise ValueError("not a unit")
        value, unit = match[1], _UNITS[match[2].lower()]
    return round(_parse_number(value) * unit)


def _parse_number(value: object) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    # NaN fails the comparison too.
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**63:
        return float(value)
    raise ValueError("not a number from 0")


def _parse_count(value: object) -> int:
    if isinstance(value, (int, str)) and "." not in str(value):
        return int(_parse_number(value))
    raise ValueError("not a count")


def _choice(*choices: str) -> _Kind:
    def parse(value: object) -> str:
        if isinstance(value, str) and value.strip() in choices:
            return value.strip()
        raise ValueError("not a choice")

    return _Kind("|".join(choices), "one of " + ", ".join(map(repr, choices)), parse)


def _parse_switch(value: object) -> bool:
    try:
        return _SWITCHES[str(value).strip().lower()]
    except KeyError:
        raise ValueError("not a switch") from None


def _parse_paths(value: object) -> list[str]:
    paths = [line.strip() for line in value.splitlines() if line.strip()] if isinstance(value, str) else value
    if isinstance(paths, list) and all(isinstance(path, str) and path for path in paths):
        return paths
    raise ValueError("not paths")


def _parse_reason(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError("not a reason")


_SWITCH = _Kind("BOOL", "true or false", _parse_switch)
_PATHS = _Kind("PATH", "a path, or a list of paths", _parse_paths)

_KINDS = {
    "count": _Kind(METAVARS["count"], "a whole number from 0", _parse_count),
    "size": _Kind(
        METAVARS["size"], "a number of MiB from 0, or a size in B, KiB, MiB, GiB or TiB such as '512KiB'", parse_size
    ),
    "seconds": _Kind(METAVARS["seconds"], "a number of seconds from 0", _parse_number),
    "cycles": _choice(*METAVARS["cycles"].split("|")),
    "scan": _choice(*METAVARS["scan"].split("|")),
}
_TARGETS = {
    "tensors": "growing_tensors",
    "mb": "growing_bytes",
    "retained_mb": "retained_bytes",
    "confirm_limit": "confirm_limit_s",
}
"""Fields of `Policy` that are not called as the option that sets them."""

_NOT_ON_A_MARKER = {"confirm_limit"}

OPTIONS = tuple(
    Option(name, _TARGETS.get(name, name), _KINDS[kind], default, text, name not in _NOT_ON_A_MARKER)
    for name, kind, default, text in ROWS
)
"""Every option that sets a field of `Policy`, in the order of the help."""

_MARKERS = {
    POLICY_MARKER: {option.name: option.kind for option in OPTIONS if option.marker},
    ALLOW_MARKER: {"reason": _Kind("TEXT", 'a text that is not empty: reason="..."', _parse_reason)},
}


def parse_switch_of(config: pytest.Config, given: object) -> bool:
    """Read the ini's `gpu_leak`. Raises pytest.UsageError for a value that is neither true nor false."""
    return bool(_parsed(_SWITCH, given, _ini_place(config, "gpu_leak")))


def read_settings(config: pytest.Config) -> Settings:
    """Read the run's settings. Raises pytest.UsageError for a value or a report path that is not accepted."""
    enabled = is_enabled(config)
    named: dict[str, Any] = {}
    for option in OPTIONS:
        given, place = command_line(config, option.ini), option.flag
        if given is None:
            given, place = ini_value(config, option.ini), _ini_place(config, option.ini)
        if given is not None:
            named[option.name] = _parsed(option.kind, given, place)
    # A worker of xdist writes no report, and may run on a machine that has no such folder.
    writes = enabled and not hasattr(config, "workerinput")
    return Settings(enabled, _build(named), _report_paths(config) if writes else (), named)


def policy_of(node: pytest.Item | pytest.Collector, settings: Settings) -> Policy:
    """Find the policy of a test, or of what was set up for a class or module.

    Raises ValueError for a marker that is not accepted, which only one added after `check_markers` can be.
    """
    named: dict[str, Any] = {}
    allowed: str | None = None
    for mark in _closest_first(node):
        complaint = _complaint(mark)
        if complaint is not None:
            raise ValueError(f"pytest.mark.{mark.name}: {complaint}")
        if mark.name == ALLOW_MARKER:
            allowed = allowed or mark.kwargs["reason"]
        else:
            for name, given in mark.kwargs.items():
                named.setdefault(name, _MARKERS[mark.name][name].parse(given))
    if named:
        return _build({**settings.named, **named})._replace(allowed=allowed)
    return settings.policy if allowed is None else settings.policy._replace(allowed=allowed)


def check_markers(items: Iterable[pytest.Item], settings: Settings) -> None:
    """Check every marker of ours on the collected tests, where tests are to be checked.

    Raises pytest.UsageError for the first that is not accepted: it names the marker, its argument and value, what is
    accepted, and the test (for a marker of a class or module, the first test in it).
    """
    if not settings.enabled:
        return
    seen: set[int] = set()
    for item in items:
        for mark in _closest_first(item):
            # One marker of a module is the same object for all its tests. The nodes keep it alive, so ids are unique.
            if id(mark) not in seen:
                seen.add(id(mark))
                complaint = _complaint(mark)
                if complaint is not None:
                    file, line, _ = item.location
                    place = f"{item.nodeid} ({file}:{(line or 0) + 1})"
                    raise pytest.UsageError(f"pytest.mark.{mark.name}: {complaint}; on {place}")


def describe(settings: Settings) -> dict[str, Any]:
    """Tell the policy of tests without a marker as plain JSON values: the fields of `Policy` but `allowed`."""
    values = settings.policy._asdict()
    del values["allowed"]
    return values


def _build(named: Mapping[str, Any]) -> Policy:
    policy = Policy(**{option.target: named[option.name] for option in OPTIONS if option.name in named})
    # The pair: where one of the two alone is named, growth is judged by that one alone.
    if "mb" in named and "tensors" not in named:
        return policy._replace(growing_tensors=None)
    if "tensors" in named and "mb" not in named:
        return policy._replace(growing_bytes=None)
    return policy


def _closest_first(node: pytest.Item | pytest.Collector) -> list[pytest.Mark]:
    """List our markers on a node: its parameter's, its own, its class's, its module's."""
    ours = [mark for mark in node.iter_markers() if mark.name in (POLICY_MARKER, ALLOW_MARKER)]
    # pytest lists what `pytest.param(..., marks=...)` adds behind the function's own, though it is closer.
    of_parameter = {id(mark) for mark in getattr(getattr(node, "callspec", None), "marks", ())} if ours else ()
    return sorted(ours, key=lambda mark: id(mark) not in of_parameter)


def _complaint(mark: pytest.Mark) -> str | None:
    known = _MARKERS[mark.name]
    names = ", ".join(known)
    if mark.args:
        return f"positional argument {_show(mark.args[0])} is not accepted, only keyword arguments: {names}"
    required = {"reason": None} if mark.name == ALLOW_MARKER else {}
    for name, given in {**required, **mark.kwargs}.items():
        if name not in known:
            return f"unknown argument {name}={_show(given)}, accepted are: {names}"
        try:
            # Not isinstance: it would ask a stranger for its __class__, which may do or raise anything.
            known[name].parse(given if {str, int, float} & {*type(given).__mro__} else None)
        except ValueError:
            return f"{name}={_show(given)} is not accepted, only {known[name].accepts}"
    return None


def _report_paths(config: pytest.Config) -> tuple[Path, ...]:
    texts, place, folder = command_line(config, "gpu_leak_report"), "--gpu-leak-report", config.invocation_params.dir
    if texts is None:
        given, place = ini_value(config, "gpu_leak_report"), _ini_place(config, "gpu_leak_report")
        if given is None:
            return ()
        texts = _parsed(_PATHS, given, place)
        folder = folder if config.inipath is None else config.inipath.parent
    # Here, since it is needed only where a report is asked for.
    from pytest_gpuleak.reports.files import complaint_of

    paths = {folder / text: text for text in texts}
    for path, text in paths.items():
        complaint = complaint_of(path)
        if complaint is not None:
            raise pytest.UsageError(f"{place}: {_show(text)} {complaint}")
    return tuple(paths)


def _ini_place(config: pytest.Config, name: str) -> str:
    overrides = getattr(config.known_args_namespace, "override_ini", None) or ()
    if config.inipath is None or any(text.partition("=")[0].strip() == name for text in overrides):
        return f"ini value {name}, given with -o"
    return f"ini value {name} in {config.inipath}"


def _parsed(kind: _Kind, given: object, place: str) -> Any:
    try:
        return kind.parse(given)
    except ValueError:
        raise pytest.UsageError(f"{place}: {_show(given)} is not accepted, only {kind.accepts}") from None


def _show(value: object) -> str:
    # The repr of a stranger is the user's code, and may be anything.
    if value is None or type(value) in (bool, int, float, str):
        text = repr(value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"a {type(value).__name__}"

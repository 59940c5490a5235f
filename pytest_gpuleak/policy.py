"""Options, ini values and markers, read into one frozen `Policy` per test.

Each option is described once, in `options.ROWS`; the command line, the ini, the marker's arguments and the text of
every usage error follow from that table and the kinds of values here. Precedence, for each option by itself: the
closest `gpu_leak` marker, the command line, the ini, the default.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from pytest_gpuleak.options import (
    ROWS,
    RUN_ROWS,
    add_options,
    command_line,
    ini_value,
    is_enabled,
    register_markers,
)
from pytest_gpuleak.values import KINDS, MIB, PATHS, SWITCH, Kind, complaint_of, parse_reason, parse_size, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = [
    "MIB", "OPTIONS", "RUN_OPTIONS", "Option", "Policy", "Settings", "add_options", "check_markers", "closest_first",
    "describe", "is_enabled", "parse_size", "place_of", "policy_of", "read_budget", "read_settings", "register_markers",
]  # fmt: skip

POLICY_MARKER = "gpu_leak"
ALLOW_MARKER = "allow_gpu_leak"


class Policy(NamedTuple):
    """What one test may leave behind, and how that is found out.

    Attributes:
        growing_tensors: arrays it may leave behind growing; None: growth is judged by bytes alone.
        growing_bytes: bytes per device it may leave behind growing; None: growth is judged by tensors alone.
        retained_bytes: residue that does not grow fails from here up, in bytes per device.
        reserved_bytes: growth of a device's reserved memory that fails, from here up; None: none does.
        host: how the host's memory is watched, by the names of the probes; empty: not at all.
        host_bytes: bytes of the host's memory it may leave behind growing.
        confirm: re-runs of a suspect; 0: the first run alone decides.
        confirm_limit_s: seconds; a suspect that took longer is not run again.
        cycles: what becomes of memory that only the cyclic collector freed.
        scan: how arrays left behind are found: by epochs of the collector, or by a scan of the heap.
        allowed: the reason given to `allow_gpu_leak`; None: findings fail.
    """

    growing_tensors: int | None = 0
    growing_bytes: int | None = 0
    retained_bytes: int = MIB
    reserved_bytes: int | None = None
    host: tuple[str, ...] = ("heap",)
    host_bytes: int = 10 * MIB
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
        budget_bytes: peak GPU memory that a test without a marker may add; None: any.
        clean: whether a failed test's frames and the device's cache are freed after it.
        top: how many of the heaviest tests are listed at the end.
        snapshots: folder for the allocator's history of leaking tests, absolute; None: none is written.
        baseline: the file of known leaks, absolute; None: none is known.
        update_baseline: whether the leaks of this run are written into the baseline, and do not fail.
        fail_stale: whether an entry of the baseline whose leak is gone fails the run.
    """

    enabled: bool
    policy: Policy
    report_paths: tuple[Path, ...] = ()
    named: Mapping[str, Any] = MappingProxyType({})
    budget_bytes: int | None = None
    clean: bool = False
    top: int = 0
    snapshots: Path | None = None
    baseline: Path | None = None
    update_baseline: bool = False
    fail_stale: bool = False


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
    kind: Kind
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


_TARGETS = {
    "tensors": "growing_tensors",
    "mb": "growing_bytes",
    "retained_mb": "retained_bytes",
    "reserved_mb": "reserved_bytes",
    "host_mb": "host_bytes",
    "confirm_limit": "confirm_limit_s",
}
"""Fields of `Policy` that are not called as the option that sets them."""

_NOT_ON_A_MARKER = {"confirm_limit", "reserved_mb", "host"}

OPTIONS = tuple(
    Option(name, _TARGETS.get(name, name), KINDS[kind], default, text, name not in _NOT_ON_A_MARKER)
    for name, kind, default, text in ROWS
)
"""Every option that sets a field of `Policy`, in the order of the help."""

RUN_OPTIONS = tuple(
    Option(name, {"max_mb": "budget_bytes"}.get(name, name), KINDS[kind], default, text, marker=False)
    for name, kind, default, text in RUN_ROWS
)
"""Every option that sets a field of `Settings`, in the order of the help."""

_MARKERS = {
    POLICY_MARKER: {option.name: option.kind for option in OPTIONS if option.marker},
    ALLOW_MARKER: {"reason": Kind("TEXT", 'a text that is not empty: reason="..."', parse_reason)},
}


def parse_switch_of(config: pytest.Config, given: object) -> bool:
    """Read the ini's `gpu_leak`. Raises pytest.UsageError for a value that is neither true nor false."""
    return bool(_parsed(SWITCH, given, _ini_place(config, "gpu_leak")))


def read_settings(config: pytest.Config) -> Settings:
    """Read the run's settings. Raises pytest.UsageError for a value or a report path that is not accepted."""
    enabled = is_enabled(config)
    named = _given(config, OPTIONS)
    given = _given(config, RUN_OPTIONS)
    of_the_run = {option.target: given[option.name] for option in RUN_OPTIONS if option.name in given}
    for name in ("snapshots", "baseline"):
        if of_the_run.get(name):
            of_the_run[name] = _folder_of(config, f"gpu_leak_{name}") / of_the_run[name]
    # A worker of xdist writes no report, and may run on a machine that has no such folder.
    writes = enabled and not hasattr(config, "workerinput")
    return Settings(enabled, _build(named), _report_paths(config) if writes else (), named, **of_the_run)


def read_scan(config: pytest.Config) -> str:
    """Read how survivors are found, alone. Raises pytest.UsageError for a value that is not accepted."""
    named = _given(config, [option for option in OPTIONS if option.name == "scan"])
    return _build(named).scan


def read_budget(config: pytest.Config) -> int | None:
    """Read `--gpu-leak-max-mb`, which holds without `--gpu-leak` too: bytes, or None. Raises pytest.UsageError."""
    budget: int | None = _given(config, [option for option in RUN_OPTIONS if option.name == "max_mb"]).get("max_mb")
    return budget


def _given(config: pytest.Config, options: Iterable[Option]) -> dict[str, Any]:
    """What the command line, or else the ini, gives for each option, by its name."""
    named: dict[str, Any] = {}
    for option in options:
        given, place = command_line(config, option.ini), option.flag
        if given is None:
            given, place = ini_value(config, option.ini), _ini_place(config, option.ini)
        if given is not None:
            named[option.name] = _parsed(option.kind, given, place)
    return named


def _folder_of(config: pytest.Config, name: str) -> Path:
    """The folder that a relative path of an option is relative to."""
    if command_line(config, name) is None and config.inipath is not None:
        return config.inipath.parent
    return config.invocation_params.dir


def policy_of(node: pytest.Item | pytest.Collector, settings: Settings) -> Policy:
    """Find the policy of a test, or of what was set up for a class or module.

    Raises ValueError for a marker that is not accepted, which only one added after `check_markers` can be.
    """
    named: dict[str, Any] = {}
    allowed: str | None = None
    for mark in closest_first(node, POLICY_MARKER, ALLOW_MARKER):
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
        for mark in closest_first(item, POLICY_MARKER, ALLOW_MARKER):
            # One marker of a module is the same object for all its tests. The nodes keep it alive, so ids are unique.
            if id(mark) not in seen:
                seen.add(id(mark))
                complaint = _complaint(mark)
                if complaint is not None:
                    raise pytest.UsageError(f"pytest.mark.{mark.name}: {complaint}; on {place_of(item)}")


def place_of(item: pytest.Item) -> str:
    """Where a test stands, for a usage error: its id, and file and line."""
    file, line, _ = item.location
    return f"{item.nodeid} ({file}:{(line or 0) + 1})"


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


def closest_first(node: pytest.Item | pytest.Collector, *names: str) -> list[pytest.Mark]:
    """List the markers of these names on a node: its parameter's, its own, its class's, its module's."""
    if not _has_any(node, names):
        return []
    ours = [mark for mark in node.iter_markers() if mark.name in names]
    # pytest lists what `pytest.param(..., marks=...)` adds behind the function's own, though it is closer.
    of_parameter = {id(mark) for mark in getattr(getattr(node, "callspec", None), "marks", ())} if ours else ()
    return sorted(ours, key=lambda mark: id(mark) not in of_parameter)


def _has_any(node: pytest.Item | pytest.Collector, names: tuple[str, ...]) -> bool:
    """Whether a marker of these names is on a node: asked for each test, in a third of what `iter_markers` takes."""
    above: Any = node
    while above is not None:
        for mark in above.own_markers:
            if mark.name in names:
                return True
        above = above.parent
    return False


def _complaint(mark: pytest.Mark) -> str | None:
    known = _MARKERS[mark.name]
    if mark.args:
        return f"positional argument {show(mark.args[0])} is not accepted, only keyword arguments: {', '.join(known)}"
    required = {"reason": None} if mark.name == ALLOW_MARKER else {}
    return complaint_of({**required, **mark.kwargs}, known)


def _report_paths(config: pytest.Config) -> tuple[Path, ...]:
    texts, place = command_line(config, "gpu_leak_report"), "--gpu-leak-report"
    if texts is None:
        given, place = ini_value(config, "gpu_leak_report"), _ini_place(config, "gpu_leak_report")
        if given is None:
            return ()
        texts = _parsed(PATHS, given, place)
    folder = _folder_of(config, "gpu_leak_report")
    # Here, since it is needed only where a report is asked for.
    from pytest_gpuleak.reports.files import complaint_of

    paths = {folder / text: text for text in texts}
    for path, text in paths.items():
        complaint = complaint_of(path)
        if complaint is not None:
            raise pytest.UsageError(f"{place}: {show(text)} {complaint}")
    return tuple(paths)


def _ini_place(config: pytest.Config, name: str) -> str:
    overrides = getattr(config.known_args_namespace, "override_ini", None) or ()
    if config.inipath is None or any(text.partition("=")[0].strip() == name for text in overrides):
        return f"ini value {name}, given with -o"
    return f"ini value {name} in {config.inipath}"


def _parsed(kind: Kind, given: object, place: str) -> Any:
    try:
        return kind.parse(given)
    except ValueError:
        raise pytest.UsageError(f"{place}: {show(given)} is not accepted, only {kind.accepts}") from None

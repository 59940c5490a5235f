"""Options of command line, ini and `gpu_leak` marker: a new one is a row, and its field of `Policy` or `Settings`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

POLICY_MARKER = "gpu_leak"
ALLOW_MARKER = "allow_gpu_leak"
BUDGET_MARKER = "max_gpu_mb"
HOST_BUDGET_MARKER = "max_host_mb"


class Option:
    """An option, wherever it may be given; `name` is the marker's argument (empty: the switch), of which others derive.

    `kind` names its value's kind or has the words that it takes (see `values.kind_of`), `target` is the field of
    `Policy` or `Settings` that it sets, and `marker` tells whether the `gpu_leak` marker takes it.
    """

    __slots__ = ("default", "flag", "help", "ini", "kind", "marker", "metavar", "name", "target")

    # No named tuple, and no parsing here: every run of pytest makes the table, with the plugin off too.
    def __init__(  # noqa: PLR0913 - the columns of the table below
        self,
        name: str,
        kind: str | tuple[str, ...],
        metavar: str,
        default: str,
        text: str,
        target: str,
        *,
        marker: bool = False,
    ) -> None:
        self.name = name
        self.ini = ini_name(name)
        self.flag = "--" + self.ini.replace("_", "-")
        self.kind = kind
        self.metavar = metavar
        self.default = default
        self.help = text
        self.target = target
        self.marker = marker


def ini_name(name: str) -> str:
    """Return the ini name of an option, which is also its attribute of `config.option`."""
    return f"gpu_leak_{name}" if name else "gpu_leak"


# fmt: off
OPTIONS = (
    Option("", "switch", "", "off", "find tests that leak; --no-gpu-leak wins over all else", "enabled"),
    Option("tensors", "count", "N", "0", "tensors a test may leave behind growing", "growing_tensors", marker=True),
    Option("mb", "size", "MB", "0", "memory per device a test may leave behind growing", "growing_bytes", marker=True),
    Option("retained_mb", "size", "MB", "1", "fail on this much memory per device left behind, even if it does not grow",
           "retained_bytes", marker=True),
    Option("reserved_mb", "limit", "MB", "off", "fail on this much growth of a device's reserved memory", "reserved_bytes"),
    Option("host", "modes", "MODE", "heap",
           "how host memory is watched: heap, tracemalloc, pympler, rss or off; several with commas", "host"),
    Option("host_mb", "size", "MB", "10", "host memory a test may leave behind growing; where it is not given, 0.25 of NumPy arrays",
           "host_bytes", marker=True),
    Option("confirm", "count", "N", "1", "how often a suspect is run again; 0: judge by the first run", "confirm",
           marker=True),
    Option("confirm_limit", "seconds", "SECONDS", "60", "a suspect that took longer is not run again", "confirm_limit_s"),
    Option("cycles", ("ignore", "note", "fail"), "POLICY", "note",
           "ignore, note or fail for memory that only the garbage collector freed", "cycles", marker=True),
    Option("scan", ("epoch", "scan"), "MODE", "epoch",
           "epoch, or scan for suites that do not bear gc.freeze()", "scan", marker=True),
    Option("process_mb", "limit", "MB", "off",
           "fail on a helper process of this size that stays but does not grow in number; growing ones always fail",
           "process_bytes"),
    Option("max_mb", "limit", "MB", "off", "peak GPU memory that a test may add, where it has no max_gpu_mb of its own",
           "budget_bytes"),
    Option("estimate", "switch", "", "off",
           "where no device is, hold max_gpu_mb to an estimate by CPU tensors, said to be one", "estimate"),
    Option("clean", "switch", "", "off",
           "after a failed test, free its frames and the device's cache, so that it does not starve later tests", "clean"),
    Option("top", "count", "N", "0",
           "list the N heaviest tests, slowest suspects and costliest callers of clean-up, and what the session added up to, at the end", "top"),
    Option("snapshots", "folder", "DIR", "off",
           "write the allocator's history of leaking tests here, for PyTorch's memory viewer", "snapshots"),
    Option("baseline", "file", "PATH", "off",
           "the file of known leaks: they are reported and pass; new and grown ones fail", "baseline"),
    Option("update_baseline", "switch", "", "off", "write the leaks of this run into the baseline; they do not fail it",
           "update_baseline"),
    Option("fail_stale", "switch", "", "off", "fail the run if the baseline lists leaks that are gone", "fail_stale"),
    Option("strict", "switch", "", "off",
           "fail the run if a test could not be checked because the check itself, or a hook of yours, failed", "strict"),
    Option("no_init_at_collection", "switch", "", "off",
           "fail the run if a device was initialised during import or collection, before the first test",
           "no_init_at_collection"),
    Option("warn", "switch", "", "off",
           "show and report leaks, and fail nothing for them: outcomes, exit status and JUnit stay as they are", "warn"),
    Option("wait", "wait", "SECONDS", "off",
           "after a test that used a device, wait while memory of this run's processes is leaving it, and tell what stays",
           "wait_s"),
    Option("children", ("memory", "agent", "off"), "MODE", "memory",
           "helper processes that wider fixtures start: memory tells their growth, agent also checks them from within, or off",
           "children"),
    Option("peaks", "count", "N", "0",
           "explain what fills the memory at the peaks of the N heaviest tests; where no device is used, each test is run twice",
           "peaks"),
    Option("peaks_baseline", "file", "PATH", "off",
           "the file of peaks to hold to: a test whose peak has grown fails, and says what grew", "peaks_baseline"),
    Option("peaks_tolerance", "percent", "PERCENT", "",
           "by how many percent a peak may grow, in place of what the file says", "peaks_tolerance"),
    Option("update_peaks", "switch", "", "off", "write the peaks of this run into the file of peaks; they do not fail it",
           "update_peaks"),
    Option("report", "paths", "PATH", "",
           "write a report when the run ends, any number of times: .json, .html, .sarif or .md", "report_paths"),
)
"""Every option, in the order of the help and of the README's table."""
# fmt: on

_ARGUMENTS = ", ".join(f"{option.name}=..." for option in OPTIONS if option.marker)
MARKERS = (
    f"{POLICY_MARKER}({_ARGUMENTS}): what a test may leave behind",
    f"{BUDGET_MARKER}(mb, total=False, device=None, metric='allocated'): peak GPU memory, in MiB, that a test may add",
    f"{HOST_BUDGET_MARKER}(mb): peak memory of Python, NumPy and torch on the host, in MiB, that a test may add",
    f"{ALLOW_MARKER}(reason=...): report what a test leaves behind, but do not fail it",
)


_ACTIONS: dict[object, str] = {"switch": "store_true", "paths": "append"}
"""argparse's action for an option of a kind, where that is not ``store``."""


def add_options(parser: pytest.Parser) -> None:
    """Declare every option on the command line and in the ini. The default is None there, so that the ini counts."""
    group = parser.getgroup("gpuleak", "leaked tensors and GPU memory")
    for option in OPTIONS:
        text = f"{option.help} (default {option.default})" if option.default else option.help
        more = {"metavar": option.metavar} if option.metavar else {}
        if option.kind in _ACTIONS:
            more["action"] = _ACTIONS[option.kind]
        group.addoption(option.flag, dest=option.ini, default=None, help=text, **more)
        parser.addini(option.ini, text, default=None)
    group.addoption("--no-gpu-leak", dest="gpu_leak_off", action="store_true", default=None, help="off, over all else")


def register_markers(config: pytest.Config) -> None:
    """Declare the markers, for `pytest --markers` and `--strict-markers`."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)


def is_switched_off(config: pytest.Config) -> bool:
    """Tell whether `--no-gpu-leak` is given, which switches budgets off too."""
    return bool(on_command_line(config, "gpu_leak_off"))


def is_given(config: pytest.Config, name: str) -> bool:
    """Tell whether a value for the option is given, on the command line or in the ini, without parsing it."""
    ini = ini_name(name)
    return on_command_line(config, ini) is not None or in_ini(config, ini) is not None


def on_command_line(config: pytest.Config, name: str) -> Any:
    """Find what is given for `name` on the command line; None: nothing."""
    # While the initial conftests load, only known_args_namespace has what was parsed; an xdist worker has it in
    # `option` from the start.
    given = getattr(config.option, name, None)
    return getattr(config.known_args_namespace, name, None) if given is None else given


def in_ini(config: pytest.Config, name: str) -> object:
    """Read what is given for `name` in the ini, or `-o`: text, or in TOML a number, bool or list too; None: nothing.

    From pytest 9.0 on `getini` holds a native TOML value to one declared type, so take the raw value: a size may be a
    number or a text. Where pytest does not keep it, texts still work.
    """
    raw: Mapping[str, object] | None = getattr(config, "_inicfg", None)
    if raw is not None and name not in raw:
        return None
    if raw is None:
        raw = getattr(config, "inicfg", None)
    entry = None if raw is None else raw.get(name)
    value = getattr(entry, "value", None) if hasattr(entry, "value") else config.getini(name)
    return None if value == "" else value  # older versions return "" where nothing is given

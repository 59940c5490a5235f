"""Define the table of options, which the command line, the ini, the `gpu_leak` marker and the settings derive from.

A new option is one row here, and the field of `Policy` or `Settings` that it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.session.config.values import (
    COUNT,
    FILE,
    FOLDER,
    LIMIT,
    MODES,
    PATHS,
    SECONDS,
    SIZE,
    SWITCH,
    Kind,
    choice,
)

if TYPE_CHECKING:
    import pytest

POLICY_MARKER = "gpu_leak"
ALLOW_MARKER = "allow_gpu_leak"
BUDGET_MARKER = "max_gpu_mb"


class Option(NamedTuple):
    """An option, wherever it may be given.

    Attributes:
        name: the marker's argument; `--gpu-leak-NAME` and `gpu_leak_NAME` derive from it. Empty for the switch.
        kind: the kind of its value; `default` is written as by a user.
        target: the field of `Policy` (a test's) or `Settings` (the run's) that it sets.
        marker: whether the `gpu_leak` marker takes it.
    """

    name: str
    kind: Kind
    default: str
    help: str
    target: str
    marker: bool = False

    @property
    def flag(self) -> str:
        """Return its name on the command line."""
        return "--" + self.ini.replace("_", "-")

    @property
    def ini(self) -> str:
        """Return its name in the ini, and its attribute of `config.option`."""
        return f"gpu_leak_{self.name}".rstrip("_")


# fmt: off
OPTIONS = (
    Option("", SWITCH, "off", "find tests that leak; --no-gpu-leak wins over all else", "enabled"),
    Option("tensors", COUNT, "0", "tensors a test may leave behind growing", "growing_tensors", marker=True),
    Option("mb", SIZE, "0", "memory per device a test may leave behind growing", "growing_bytes", marker=True),
    Option("retained_mb", SIZE, "1", "fail on this much memory per device left behind, even if it does not grow",
           "retained_bytes", marker=True),
    Option("reserved_mb", LIMIT, "off", "fail on this much growth of a device's reserved memory", "reserved_bytes"),
    Option("host", MODES, "heap",
           "how host memory is watched: heap, tracemalloc, pympler, rss or off; several with commas", "host"),
    Option("host_mb", SIZE, "10", "host memory a test may leave behind growing; where it is not given, 0.25 of NumPy arrays",
           "host_bytes", marker=True),
    Option("confirm", COUNT, "1", "how often a suspect is run again; 0: judge by the first run", "confirm",
           marker=True),
    Option("confirm_limit", SECONDS, "60", "a suspect that took longer is not run again", "confirm_limit_s"),
    Option("cycles", choice("ignore", "note", "fail", metavar="POLICY"), "note",
           "ignore, note or fail for memory that only the garbage collector freed", "cycles", marker=True),
    Option("scan", choice("epoch", "scan", metavar="MODE"), "epoch",
           "epoch, or scan for suites that do not bear gc.freeze()", "scan", marker=True),
    Option("process_mb", LIMIT, "off",
           "fail on a helper process of this size that stays but does not grow in number; growing ones always fail",
           "process_bytes"),
    Option("max_mb", LIMIT, "off", "peak GPU memory that a test may add, where it has no max_gpu_mb of its own",
           "budget_bytes"),
    Option("clean", SWITCH, "off",
           "after a failed test, free its frames and the device's cache, so that it does not starve later tests", "clean"),
    Option("top", COUNT, "0",
           "list the N heaviest tests, the N slowest suspects, and what the session added up to, at the end", "top"),
    Option("snapshots", FOLDER, "off",
           "write the allocator's history of leaking tests here, for PyTorch's memory viewer", "snapshots"),
    Option("baseline", FILE, "off",
           "the file of known leaks: they are reported and pass; new and grown ones fail", "baseline"),
    Option("update_baseline", SWITCH, "off", "write the leaks of this run into the baseline; they do not fail it",
           "update_baseline"),
    Option("fail_stale", SWITCH, "off", "fail the run if the baseline lists leaks that are gone", "fail_stale"),
    Option("strict", SWITCH, "off",
           "fail the run if a test could not be checked because the check itself, or a hook of yours, failed", "strict"),
    Option("report", PATHS, "",
           "write a report when the run ends, any number of times: .json, .html, .sarif or .md", "report_paths"),
)
"""Every option, in the order of the help and of the README's table."""
# fmt: on

_ARGUMENTS = ", ".join(f"{option.name}=..." for option in OPTIONS if option.marker)
MARKERS = (
    f"{POLICY_MARKER}({_ARGUMENTS}): what a test may leave behind",
    f"{BUDGET_MARKER}(mb, total=False, device=None, metric='allocated'): peak GPU memory, in MiB, that a test may add",
    f"{ALLOW_MARKER}(reason=...): report what a test leaves behind, but do not fail it",
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option on the command line and in the ini. The default is None there, so that the ini counts."""
    group = parser.getgroup("gpuleak", "leaked tensors and GPU memory")
    for option in OPTIONS:
        text = f"{option.help} (default {option.default})" if option.default else option.help
        placeholder = {"metavar": option.kind.metavar} if option.kind.metavar else {}
        group.addoption(option.flag, dest=option.ini, action=option.kind.action, default=None, help=text, **placeholder)
        parser.addini(option.ini, text, default=None)
    group.addoption("--no-gpu-leak", dest="gpu_leak_off", action="store_true", default=None, help="off, over all else")


def register_markers(config: pytest.Config) -> None:
    """Declare the markers, for `pytest --markers` and `--strict-markers`."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)

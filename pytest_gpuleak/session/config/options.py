"""The options' names, and whether the plugin is switched on: all that is imported where it is installed and off.

pytest compiles a plugin's modules anew in a fresh environment, so each line here costs every start: what the values
mean stands in `model.policy`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import pytest


POLICY_MARKER = "gpu_leak"
ALLOW_MARKER = "allow_gpu_leak"

METAVARS = {
    "count": "N",
    "size": "MB",
    "limit": "MB",
    "seconds": "SECONDS",
    "cycles": "ignore|note|fail",
    "scan": "epoch|scan",
    "modes": "MODE[,MODE]",
    "folder": "DIR",
    "file": "PATH",
}
"""The placeholder in the help, by the kind of the value."""

ROWS = (
    ("tensors", "count", "0", "tensors a test may leave behind growing"),
    ("mb", "size", "0", "MiB per device a test may leave behind growing"),
    ("retained_mb", "size", "1", "MiB per device from which residue that does not grow fails"),
    ("reserved_mb", "limit", "off", "MiB per device of growth in reserved memory that fails"),
    ("host", "modes", "heap", "how host memory is watched: heap, tracemalloc, pympler, rss or off"),
    ("host_mb", "size", "10", "MiB of host memory a test may leave behind growing"),
    ("confirm", "count", "1", "re-runs of a suspect; 0: judge by the first run"),
    ("confirm_limit", "seconds", "60", "a suspect that took longer is not re-run"),
    ("cycles", "cycles", "note", "what becomes of memory that only the cyclic collector freed"),
    ("scan", "scan", "epoch", "how survivors are found; scan: without gc.freeze"),
    ("process_mb", "limit", "off", "MiB from which a helper process fails that stays but does not grow in number"),
)
"""Name, kind of value, default and help of every option that sets a field of `Policy`, in the help's order."""

RUN_ROWS = (
    ("max_mb", "limit", "off", "MiB of peak GPU memory that a test without the marker max_gpu_mb may add"),
    ("clean", "switch", "off", "after a failed test, free its frames and the device's cache"),
    ("top", "count", "0", "the heaviest tests that the end of the run lists, with what the session added"),
    ("snapshots", "folder", "off", "write the allocator's history of leaking tests here, for PyTorch's memory viewer"),
    ("baseline", "file", "off", "the file of known leaks: they are reported and pass; new and grown ones fail"),
    ("update_baseline", "switch", "off", "write the leaks of this run into the baseline; they do not fail it"),
    ("fail_stale", "switch", "off", "fail the run if the baseline lists leaks that are gone"),
    (
        "strict",
        "switch",
        "off",
        "fail the run if a test could not be checked through a fault of the check or of a hook",
    ),
)
"""As `ROWS`, for options that set a field of `Settings`: of the run, not of a test."""

USAGE_ERROR_KEY = "gpu_leak_usage_error"
"""Where the usage error of an xdist worker travels in its ``workeroutput``."""
UNCHECKED_BUDGETS_KEY = "gpu_leak_unchecked_budgets"
"""Where the reasons travel for which a worker could not check budgets: one each."""

MARKERS = (
    (
        "gpu_leak(tensors=..., mb=..., retained_mb=..., host_mb=..., confirm=..., cycles=..., scan=...): what a test may "
        "leave behind"
    ),
    "max_gpu_mb(mb, total=False, device=None, metric='allocated'): peak GPU memory, in MiB, that a test may add",
    "allow_gpu_leak(reason=...): report what a test leaves behind, but do not fail it",
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option on the command line and in the ini. Each defaults to None there, so that the ini counts."""
    group = parser.getgroup("gpuleak", "leaked tensors and GPU memory")
    group.addoption("--gpu-leak", dest="gpu_leak", action="store_true", default=None, help="find tests that leak")
    group.addoption("--no-gpu-leak", dest="gpu_leak_off", action="store_true", default=None, help="off, over all else")
    parser.addini("gpu_leak", "find tests that leak: true or false (default false)", default=None)
    for name, kind, default, help_text in ROWS + RUN_ROWS:
        text = f"{help_text} (default {default})"
        flag, dest = "--gpu-leak-" + name.replace("_", "-"), "gpu_leak_" + name
        if kind == "switch":
            group.addoption(flag, dest=dest, action="store_true", default=None, help=text)
        else:
            group.addoption(flag, dest=dest, metavar=METAVARS[kind], default=None, help=text)
        parser.addini(dest, text, default=None)
    text = "write a report here when the run ends; the suffix names its format; may be given repeatedly"
    group.addoption("--gpu-leak-report", dest="gpu_leak_report", metavar="PATH", action="append", help=text)
    parser.addini("gpu_leak_report", "reports to write, one path a line, relative to this file", default=None)


def register_markers(config: pytest.Config) -> None:
    """Declare the markers, for `pytest --markers` and `--strict-markers`."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)


def is_enabled(config: pytest.Config) -> bool:
    """Whether tests are to be checked: `--no-gpu-leak` over `--gpu-leak` over the ini.

    May be called from `pytest_load_initial_conftests` on. Raises pytest.UsageError for a bad ini value.
    """
    if command_line(config, "gpu_leak_off"):
        return False
    if command_line(config, "gpu_leak"):
        return True
    given = ini_value(config, "gpu_leak")
    if given is None:
        return False
    from pytest_gpuleak.session.config.settings import parse_switch_of

    return parse_switch_of(config, given)


def is_given(config: pytest.Config, *names: str) -> bool:
    """Whether one of these options is given, or any beside the switch: most runs need nothing of what reads them."""
    for name in names or [*(row[0] for row in ROWS + RUN_ROWS), "report"]:
        dest = "gpu_leak_" + name
        if command_line(config, dest) is not None or ini_value(config, dest) is not None:
            return True
    return False


def command_line(config: pytest.Config, name: str) -> Any:
    """Read what the command line gives for a name; None: nothing."""
    # While the initial conftests load, what was parsed stands in known_args_namespace alone; an xdist worker gets it
    # in `option` from the start.
    given = getattr(config.option, name, None)
    return getattr(config.known_args_namespace, name, None) if given is None else given


def ini_value(config: pytest.Config, name: str) -> object:
    """Read what the ini, or `-o`, gives for a name: text, or in TOML a number, bool or list too; None: nothing.

    Before 9.0 pytest's `getini` hands out what the file says. From then on it holds a value of a native TOML table to
    one declared type, while a size may be a number or a text: there the raw value is taken, which pytest wraps and
    keeps in `inicfg` (9.0) or `_inicfg`. Should it keep it elsewhere one day, texts still work.
    """
    raw: Mapping[str, object] | None = getattr(config, "_inicfg", None)
    if raw is None:
        raw = getattr(config, "inicfg", None)
    entry = None if raw is None else raw.get(name)
    value = getattr(entry, "value", None) if hasattr(entry, "value") else config.getini(name)
    return None if value == "" else value  # "" is what older versions say where nothing is given

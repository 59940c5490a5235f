"""The run's settings, as the command line and the ini give them.

Precedence, for each option by itself: the closest `gpu_leak` marker, the command line, the ini, the default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.policy import Settings
from pytest_gpuleak.session.config.markers import build_policy
from pytest_gpuleak.session.config.option_table import OPTIONS, RUN_OPTIONS
from pytest_gpuleak.session.config.options import command_line, ini_value, is_enabled
from pytest_gpuleak.session.config.values import PATHS, SWITCH, show

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pytest_gpuleak.session.config.option_table import Option
    from pytest_gpuleak.session.config.values import Kind


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
    return Settings(enabled, build_policy(named), _report_paths(config) if writes else (), named, **of_the_run)


def read_scan(config: pytest.Config) -> str:
    """Read how survivors are found, alone. Raises pytest.UsageError for a value that is not accepted."""
    named = _given(config, [option for option in OPTIONS if option.name == "scan"])
    return build_policy(named).scan


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


def _report_paths(config: pytest.Config) -> tuple[Path, ...]:
    texts, place = command_line(config, "gpu_leak_report"), "--gpu-leak-report"
    if texts is None:
        given, place = ini_value(config, "gpu_leak_report"), _ini_place(config, "gpu_leak_report")
        if given is None:
            return ()
        texts = _parsed(PATHS, given, place)
    folder = _folder_of(config, "gpu_leak_report")
    # Here, since it is needed only where a report is asked for.
    from pytest_gpuleak.reports.formats import complaint_of

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

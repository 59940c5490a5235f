"""Find the value of an option on the command line, or else in the ini.

Precedence, for each option by itself: the closest `gpu_leak` marker, the command line, the ini, the default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gpuleak.session.config.options import OPTIONS
from pytest_gpuleak.session.config.values import show

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_BY_NAME = {option.name: option for option in OPTIONS}


class Given(NamedTuple):
    """A value for an option, given at `place` (for a usage error); relative paths are relative to `folder`."""

    value: Any
    place: str
    folder: Path


def is_enabled(config: pytest.Config) -> bool:
    """Tell whether tests are to be checked: `--no-gpu-leak` over `--gpu-leak` over the ini.

    May be called from `pytest_load_initial_conftests` on. Raises pytest.UsageError for a bad ini value.
    """
    return not is_switched_off(config) and bool(read_value(config, ""))


def is_switched_off(config: pytest.Config) -> bool:
    """Tell whether `--no-gpu-leak` is given, which switches budgets off too."""
    return bool(_on_command_line(config, "gpu_leak_off"))


def read_value(config: pytest.Config, name: str) -> Any:
    """Read the value of an option; None where none is given. Raises pytest.UsageError for what is not accepted."""
    given = find_given(config, name)
    return None if given is None else given.value


def find_given(config: pytest.Config, name: str) -> Given | None:
    """Find and parse the value of an option. Raises pytest.UsageError for what is not accepted."""
    option = _BY_NAME[name]
    value, folder = _on_command_line(config, option.ini), config.invocation_params.dir
    if value is None:
        value = _in_ini(config, option.ini)
        if value is None:
            return None
        if config.inipath is not None:
            folder = config.inipath.parent
    place = place_of_option(config, name)
    try:
        return Given(option.kind.parse(value), place, folder)
    except ValueError:
        raise pytest.UsageError(f"{place}: {show(value)} is not accepted, only {option.kind.accepts}") from None


def place_of_option(config: pytest.Config, name: str) -> str:
    """Tell where an option is given, as a usage error names it: its flag, or the ini and its file."""
    option = _BY_NAME[name]
    if _on_command_line(config, option.ini) is not None:
        return option.flag
    overrides = getattr(config.known_args_namespace, "override_ini", None) or ()
    if config.inipath is None or any(text.partition("=")[0].strip() == option.ini for text in overrides):
        return f"ini value {option.ini}, given with -o"
    return f"ini value {option.ini} in {config.inipath}"


def _on_command_line(config: pytest.Config, name: str) -> Any:
    # While the initial conftests load, only known_args_namespace has what was parsed; an xdist worker has it in
    # `option` from the start.
    given = getattr(config.option, name, None)
    return getattr(config.known_args_namespace, name, None) if given is None else given


def _in_ini(config: pytest.Config, name: str) -> object:
    """Read the value from the ini, or `-o`: text, or in TOML a number, bool or list too; None: nothing.

    From pytest 9.0 on `getini` holds a native TOML value to one declared type, while a size may be a number or a text:
    so take the raw value, which pytest keeps in `inicfg` or `_inicfg`. If a later pytest keeps it elsewhere, texts
    still work.
    """
    raw: Mapping[str, object] | None = getattr(config, "_inicfg", None)
    if raw is None:
        raw = getattr(config, "inicfg", None)
    entry = None if raw is None else raw.get(name)
    value = getattr(entry, "value", None) if hasattr(entry, "value") else config.getini(name)
    return None if value == "" else value  # older versions return "" where nothing is given

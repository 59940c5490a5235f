"""Parse the value of an option that is given on the command line, or else in the ini."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gpuleak.session.config.values import kind_of, show
from pytest_gpuleak.session.options import OPTIONS, in_ini, is_switched_off, on_command_line

if TYPE_CHECKING:
    from pathlib import Path

_BY_NAME = {option.name: option for option in OPTIONS}


class Given(NamedTuple):
    """A value for an option, given at `place` (for a usage error); relative paths are relative to `folder`."""

    value: Any
    place: str
    folder: Path


def is_enabled(config: pytest.Config) -> bool:
    """Tell whether tests are to be checked. Raises pytest.UsageError for a bad ini value."""
    return not is_switched_off(config) and bool(read_value(config, ""))


def read_value(config: pytest.Config, name: str) -> Any:
    """Read the value of an option; None where none is given. Raises pytest.UsageError for what is not accepted."""
    given = find_given(config, name)
    return None if given is None else given.value


def find_given(config: pytest.Config, name: str) -> Given | None:
    """Find and parse the value of an option. Raises pytest.UsageError for what is not accepted."""
    option = _BY_NAME[name]
    value, folder = on_command_line(config, option.ini), config.invocation_params.dir
    if value is None:
        value = in_ini(config, option.ini)
        if value is None:
            return None
        if config.inipath is not None:
            folder = config.inipath.parent
    place, kind = place_of_option(config, name), kind_of(option)
    try:
        return Given(kind.parse(value), place, folder)
    except ValueError:
        raise pytest.UsageError(f"{place}: {show(value)} is not accepted, only {kind.accepts}") from None


def place_of_option(config: pytest.Config, name: str) -> str:
    """Tell where an option is given, as a usage error names it: its flag, or the ini and its file."""
    option = _BY_NAME[name]
    if on_command_line(config, option.ini) is not None:
        return option.flag
    overrides = getattr(config.known_args_namespace, "override_ini", None) or ()
    if config.inipath is None or any(text.partition("=")[0].strip() == option.ini for text in overrides):
        return f"ini value {option.ini}, given with -o"
    return f"ini value {option.ini} in {config.inipath}"

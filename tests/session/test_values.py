"""Values of options and markers that are not accepted, and what is said of each."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuleak.session.config.given_values import read_value
from pytest_gpuleak.session.config.markers import why_not_accepted
from pytest_gpuleak.session.options import OPTIONS

INI = Path("project", "pytest.ini")
NAMES = {option.name.replace("_", "-"): option for option in OPTIONS}

SIZES = "only a number of MiB from 0, or a size in B, KiB, MiB, GiB or TiB such as '512KiB'"
COUNTS = "only a whole number from 0 to 9223372036854775807"
LIMITS = SIZES.replace("only ", "only 'off', or ")
WAITS = "only 'off', or a number of seconds from 0 to 3600"
MODES = "only 'off', or of 'heap', 'tracemalloc', 'pympler', 'rss' one or, with commas, several"


def config(command_line: dict[str, object], ini: dict[str, object]) -> Any:
    """What of a `pytest.Config` is read."""
    entries = {name: types.SimpleNamespace(value=value) for name, value in ini.items()}
    return types.SimpleNamespace(
        option=types.SimpleNamespace(**command_line),
        known_args_namespace=types.SimpleNamespace(),
        invocation_params=types.SimpleNamespace(dir=Path()),
        inipath=INI,
        _inicfg=entries,
        inicfg=entries,
    )


def error(name: str, given: Any) -> str:
    with pytest.raises(pytest.UsageError) as refused:
        read_value(given, name)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("tensors", "few", COUNTS),
        ("tensors", "-1", COUNTS),
        ("tensors", "1.5", COUNTS),
        ("tensors", "9223372036854775808", COUNTS),
        ("tensors", "9" * 70, COUNTS),
        ("mb", "nan", SIZES),
        ("mb", "3 parsec", SIZES),
        ("retained-mb", "-3", SIZES),
        ("reserved-mb", "-1", LIMITS),
        ("host", "heap,stack", MODES),
        ("host", "off,heap", MODES),
        ("host", "heap,,rss", MODES),
        ("host-mb", "off", SIZES),
        ("max-mb", "-1", LIMITS),
        ("max-mb", "nan", LIMITS),
        ("max-mb", "inf", LIMITS),
        ("top", "all", COUNTS),
        ("peaks", "-1", COUNTS),
        ("peaks-tolerance", "2 MiB", "only a percentage from 0 to 9999, such as '2%'"),
        ("confirm", "true", COUNTS),
        ("confirm-limit", "1 min", "only a number of seconds from 0"),
        ("cycles", "warn", "only one of 'ignore', 'note', 'fail'"),
        ("scan", "Epoch", "only one of 'epoch', 'scan'"),
        ("children", "yes", "only one of 'memory', 'agent', 'off'"),
        ("process-mb", "many", LIMITS),
        *(("wait", value, WAITS) for value in ("-1", "nan", "inf", "-inf", "1e9", "3601", "9" * 20, "soon", "1s", " ")),
    ],
)
def test_a_text_on_the_command_line_and_in_the_ini(name: str, value: str, accepted: str) -> None:
    option = NAMES[name]
    said = f"{value!r} is not accepted, {accepted}"
    assert error(option.name, config({option.ini: value}, {})) == f"--gpu-leak-{name}: {said}"
    assert option.ini == f"gpu_leak_{name.replace('-', '_')}"
    assert error(option.name, config({}, {option.ini: value})) == f"ini value {option.ini} in {INI}: {said}"


@pytest.mark.parametrize(
    ("ini", "value", "said"),
    [
        ("gpu_leak_mb", True, "True is not accepted"),
        ("gpu_leak_mb", float("nan"), "nan is not accepted"),
        ("gpu_leak_mb", float("inf"), "inf is not accepted"),
        ("gpu_leak_confirm", 1.0, "1.0 is not accepted"),
        ("gpu_leak_confirm", -1, "-1 is not accepted"),
        ("gpu_leak_confirm", [1], "[1] is not accepted"),
        ("gpu_leak_confirm", [[1]], "a list is not accepted"),
        ("gpu_leak_scan", 3, "3 is not accepted"),
        ("gpu_leak_report", 3, "3 is not accepted, only a path, or a list of paths"),
        ("gpu_leak_report", [3], "[3] is not accepted, only a path, or a list of paths"),
        ("gpu_leak_host", ["heap", "stack"], f"['heap', 'stack'] is not accepted, {MODES}"),
        ("gpu_leak_host", [], f"a list is not accepted, {MODES}"),
        ("gpu_leak_host", ["off", "heap"], f"['off', 'heap'] is not accepted, {MODES}"),
        ("gpu_leak_host", 1, f"1 is not accepted, {MODES}"),
        ("gpu_leak_host_mb", -0.5, f"-0.5 is not accepted, {SIZES}"),
        ("gpu_leak_reserved_mb", True, f"True is not accepted, {LIMITS}"),
        ("gpu_leak_max_mb", float("inf"), f"inf is not accepted, {LIMITS}"),
        ("gpu_leak_clean", 2, "2 is not accepted, only true or false"),
        ("gpu_leak_no_init_at_collection", "maybe", "'maybe' is not accepted, only true or false"),
        ("gpu_leak_top", 1.5, f"1.5 is not accepted, {COUNTS}"),
        ("gpu_leak_snapshots", 3, "3 is not accepted, only 'off', or the path of a folder"),
        ("gpu_leak", 2, "2 is not accepted"),
    ],
)
def test_native_toml(ini: str, value: object, said: str) -> None:
    (name,) = [option.name for option in OPTIONS if option.ini == ini]
    assert error(name, config({}, {ini: value})).startswith(f"ini value {ini} in {INI}: {said}")


class Hostile:
    """Fails whatever looks at it."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


gpu_leak, allow_gpu_leak = pytest.mark.gpu_leak, pytest.mark.allow_gpu_leak


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (gpu_leak(3), "positional argument 3 is not accepted, only keyword arguments: tensors, mb, retained_mb, "),
        (
            gpu_leak(host="rss"),
            "unknown argument host='rss', accepted are: tensors, mb, retained_mb, host_mb, confirm, cycles, ",
        ),
        (gpu_leak(reserved_mb=3), "unknown argument reserved_mb=3, accepted are: tensors, "),
        (gpu_leak(host_mb="lots"), f"host_mb='lots' is not accepted, {SIZES}"),
        (gpu_leak(confirm_limit=3), "unknown argument confirm_limit=3, accepted are: tensors, "),
        (gpu_leak(mb="lots"), f"mb='lots' is not accepted, {SIZES}"),
        (gpu_leak(tensors=True), f"tensors=True is not accepted, {COUNTS}"),
        (gpu_leak(tensors=1.0), f"tensors=1.0 is not accepted, {COUNTS}"),
        (gpu_leak(tensors=None), f"tensors=None is not accepted, {COUNTS}"),
        (gpu_leak(cycles=print), "cycles=a builtin_function_or_method is not accepted, only one of 'ignore', "),
        (gpu_leak(scan=Hostile()), "scan=a Hostile is not accepted, only one of 'epoch', 'scan'"),
        (gpu_leak(scan="x" * 1000), f"scan='{'x' * 79}... is not accepted"),
        (gpu_leak(scan="\x1b[31m"), r"scan='\x1b[31m' is not accepted"),
        (allow_gpu_leak(), 'reason=None is not accepted, only a text that is not empty: reason="..."'),
        (allow_gpu_leak, "reason=None is not accepted"),
        (allow_gpu_leak(reason=" "), "reason=' ' is not accepted"),
        (allow_gpu_leak(reason=3), "reason=3 is not accepted"),
        (allow_gpu_leak("known"), "positional argument 'known' is not accepted, only keyword arguments: reason"),
        (allow_gpu_leak(reason="known", until=3), "unknown argument until=3, accepted are: reason"),
    ],
)
def test_a_marker(mark: pytest.MarkDecorator, said: str) -> None:
    assert str(why_not_accepted(mark.mark)).startswith(said)

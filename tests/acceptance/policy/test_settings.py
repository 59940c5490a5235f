from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuleak.model.text import MIB

RunPolicy = Callable[..., Any]

DEFAULTS = {
    "growing_tensors": 0,
    "growing_bytes": 0,
    "retained_bytes": MIB,
    "reserved_bytes": None,
    "host": ["heap"],
    "host_bytes": 10 * MIB,
    "array_bytes": MIB // 4,
    "confirm": 1,
    "confirm_limit_s": 60.0,
    "cycles": "note",
    "scan": "epoch",
    "process_bytes": None,
}
RUN_DEFAULTS = {
    "budget_bytes": None,
    "estimate": False,
    "clean": False,
    "top": 0,
    "snapshots": None,
    "strict": False,
    "wait_s": None,
    "children": "memory",
    "peaks": 0,
    "peaks_baseline": None,
    "peaks_tolerance": None,
    "update_peaks": False,
}
ALL = {
    "growing_tensors": 2,
    "growing_bytes": 3 * MIB // 2,
    "retained_bytes": 512 * 1024,
    "reserved_bytes": 64 * MIB,
    "host": ["heap", "rss"],
    "host_bytes": 20 * MIB,
    "array_bytes": 20 * MIB,
    "confirm": 3,
    "confirm_limit_s": 2.5,
    "cycles": "fail",
    "scan": "scan",
    "process_bytes": 300 * MIB,
}
RUN_ALL = {
    "budget_bytes": 500 * MIB,
    "estimate": True,
    "clean": True,
    "top": 9,
    "strict": True,
    "wait_s": 2.5,
    "children": "agent",
    "peaks": 4,
    "peaks_tolerance": 0.05,
    "update_peaks": True,
}
COMMAND_LINE = [
    "--gpu-leak",
    "--gpu-leak-tensors=2",
    "--gpu-leak-mb=1.5",
    "--gpu-leak-retained-mb=512KiB",
    "--gpu-leak-reserved-mb=64",
    "--gpu-leak-host=heap,rss",
    "--gpu-leak-host-mb=20 MB",
    "--gpu-leak-confirm=3",
    "--gpu-leak-confirm-limit=2.5",
    "--gpu-leak-cycles=fail",
    "--gpu-leak-scan=scan",
    "--gpu-leak-process-mb=300",
    "--gpu-leak-max-mb=500",
    "--gpu-leak-estimate",
    "--gpu-leak-clean",
    "--gpu-leak-top=9",
    "--gpu-leak-snapshots=history",
    "--gpu-leak-strict",
    "--gpu-leak-wait=2.5",
    "--gpu-leak-children=agent",
    "--gpu-leak-peaks=4",
    "--gpu-leak-peaks-baseline=peaks.toml",
    "--gpu-leak-peaks-tolerance=5%",
    "--gpu-leak-update-peaks",
]
INI = """
gpu_leak = true
gpu_leak_tensors = 2
gpu_leak_mb = 1.5
gpu_leak_retained_mb = {quote}512KiB{quote}
gpu_leak_reserved_mb = 64
gpu_leak_host = {host}
gpu_leak_host_mb = {quote}20 MB{quote}
gpu_leak_confirm = 3
gpu_leak_confirm_limit = 2.5
gpu_leak_cycles = {quote}fail{quote}
gpu_leak_scan = {quote}scan{quote}
gpu_leak_process_mb = 300
gpu_leak_max_mb = 500
gpu_leak_estimate = true
gpu_leak_clean = true
gpu_leak_top = 9
gpu_leak_snapshots = {quote}history{quote}
gpu_leak_strict = true
gpu_leak_wait = 2.5
gpu_leak_children = {quote}agent{quote}
gpu_leak_peaks = 4
gpu_leak_peaks_baseline = {quote}peaks.toml{quote}
gpu_leak_peaks_tolerance = 5
gpu_leak_update_peaks = true
"""
native_toml = pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 9 brought [tool.pytest]")


def everything(folder: object) -> dict[str, Any]:
    """What is read where every option is given, relative folders in `folder`."""
    run = {**RUN_ALL, "snapshots": f"{folder}/history", "peaks_baseline": f"{folder}/peaks.toml"}
    return {"enabled": True, "policy": ALL, "reports": [], "run": run, "budget": 500 * MIB}


NOTHING = {"enabled": False, "policy": DEFAULTS, "reports": [], "run": RUN_DEFAULTS, "budget": None}


def test_off_and_defaults_where_nothing_is_said(run_policy: RunPolicy) -> None:
    run = run_policy()
    assert run.settings == NOTHING
    assert run.early is False


def test_command_line(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    run = run_policy(*COMMAND_LINE)
    assert run.settings == everything(pytester.path)
    assert run.early is True


@pytest.mark.parametrize(
    ("file", "table", "quote", "host"),
    [
        ("pytest.ini", "[pytest]", "", "heap, rss"),
        ("tox.ini", "[pytest]", "", "heap,rss"),
        ("setup.cfg", "[tool:pytest]", "", "heap,rss"),
        ("pyproject.toml", "[tool.pytest.ini_options]", '"', '"heap,rss"'),
        pytest.param("pyproject.toml", "[tool.pytest]", '"', '"heap,rss"', marks=native_toml),
        pytest.param("pyproject.toml", "[tool.pytest]", '"', '["heap", "rss", "heap"]', marks=native_toml),
        pytest.param("pytest.toml", "[pytest]", '"', '["heap", "rss"]', marks=native_toml),
    ],
)
def test_ini(run_policy: RunPolicy, pytester: pytest.Pytester, file: str, table: str, quote: str, host: str) -> None:
    pytester.path.joinpath(file).write_text(table + INI.format(quote=quote, host=host), encoding="utf-8")
    run = run_policy("--strict-config")
    assert run.settings == everything(pytester.path)
    assert run.early is True


def test_a_folder_is_relative_to_where_it_is_said(
    run_policy: RunPolicy, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\ngpu_leak_snapshots = history\n")
    below = pytester.mkdir("below")
    monkeypatch.chdir(below)
    assert run_policy().settings["run"]["snapshots"] == str(pytester.path / "history")
    assert run_policy("--gpu-leak-snapshots=mine").settings["run"]["snapshots"] == str(below / "mine")


def test_what_the_ini_asks_for_can_be_switched_off_again(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    names = ("reserved_mb", "host", "max_mb", "snapshots")
    lines = ("gpu_leak_reserved_mb = 3", "gpu_leak_host = rss", "gpu_leak_max_mb = 3", "gpu_leak_snapshots = history")
    pytester.makeini("[pytest]\n" + "\n".join(lines) + "\n")
    settings = run_policy(*(f"--gpu-leak-{name.replace('_', '-')}=Off" for name in names)).settings
    assert (settings["policy"]["reserved_bytes"], settings["policy"]["host"]) == (None, [])
    assert settings["run"] == RUN_DEFAULTS
    assert settings["budget"] is None


@native_toml
def test_host_off_in_a_list(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.pytest]\ngpu_leak_host = ["off"]\ngpu_leak_clean = "no"\n')
    settings = run_policy().settings
    assert settings["policy"]["host"] == []
    assert settings["run"] == RUN_DEFAULTS


@native_toml
def test_native_toml_takes_numbers_as_text_too(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.pytest]\ngpu_leak = "yes"\ngpu_leak_mb = "2"\ngpu_leak_confirm = "0"\n')
    settings = run_policy().settings
    assert settings["enabled"]
    assert settings["policy"]["growing_bytes"] == 2 * MIB
    assert settings["policy"]["confirm"] == 0


def test_command_line_beats_ini_value_by_value(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpu_leak_confirm = 5\ngpu_leak_cycles = ignore\n")
    policy = run_policy("--gpu-leak", "--gpu-leak-confirm", "2").settings["policy"]
    assert (policy["confirm"], policy["cycles"]) == (2, "ignore")


def test_override_ini_beats_the_file(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpu_leak_mb = 5\n")
    run = run_policy("-o", "gpu_leak_mb=3", "-o", "gpu_leak=on")
    assert run.settings["enabled"]
    assert run.early is True
    assert run.settings["policy"]["growing_bytes"] == 3 * MIB


def test_an_empty_ini_value_says_nothing(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpu_leak =\ngpu_leak_mb =\n")
    assert run_policy().settings == NOTHING


@pytest.mark.parametrize(
    ("ini", "arguments", "enabled"),
    [
        ("false", [], False),
        ("On", [], True),
        ("0", [], False),
        ("false", ["--gpu-leak"], True),
        ("true", ["--no-gpu-leak"], False),
        ("true", ["--no-gpu-leak", "--gpu-leak"], False),
        ("true", ["--gpu-leak", "--no-gpu-leak"], False),
    ],
)
def test_switch(
    run_policy: RunPolicy, pytester: pytest.Pytester, ini: str, arguments: list[str], enabled: bool
) -> None:
    pytester.makeini(f"[pytest]\ngpu_leak = {ini}\n")
    run = run_policy(*arguments)
    assert run.settings["enabled"] is enabled
    assert run.early is enabled


@pytest.mark.parametrize(
    ("ini", "arguments", "growth"),
    [
        ("", [], (0, 0)),
        ("", ["--gpu-leak-mb=2"], (None, 2 * MIB)),
        ("", ["--gpu-leak-tensors=2"], (2, None)),
        ("", ["--gpu-leak-tensors=2", "--gpu-leak-mb=0"], (2, 0)),
        ("gpu_leak_mb = 3", [], (None, 3 * MIB)),
        ("gpu_leak_mb = 3", ["--gpu-leak-tensors=1"], (1, 3 * MIB)),
        ("gpu_leak_tensors = 0", [], (0, None)),
    ],
)
def test_growth_is_judged_by_what_is_named(
    run_policy: RunPolicy, pytester: pytest.Pytester, ini: str, arguments: list[str], growth: tuple[int, int]
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    policy = run_policy(*arguments).settings["policy"]
    assert (policy["growing_tensors"], policy["growing_bytes"]) == growth


def test_help_names_every_option_and_default(run_policy: RunPolicy) -> None:
    text = " ".join(run_policy("--help").result.stdout.str().split())
    for argument in COMMAND_LINE:
        assert argument.partition("=")[0] in text
    assert (
        "--gpu-leak-retained-mb=MB fail on this much memory per device left behind, even if it does not grow (default 1)"
        in text
    )
    assert "--gpu-leak-host=MODE how host memory is watched: heap, tracemalloc, pympler, rss or off; several " in text
    assert "gpu_leak_confirm_limit (string): a suspect that took longer is not run again (default 60)" in text


def test_xdist_workers_get_the_command_line(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile("def test_one(): pass")
    run = run_policy("-n1", *COMMAND_LINE, f"--gpu-leak-report={pytester.path / 'r.json'}", subprocess=True)
    run.result.assert_outcomes(passed=1)
    assert run.policies == {"test_one": {**ALL, "allowed": None}}

"""A run of pytest with the policy alone: what was read is written to files, no test is checked."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

PLUGIN = """
import json
from pathlib import Path

import pytest

from pytest_gpuleak.model import policy
from pytest_gpuleak.session import options
from pytest_gpuleak.session.config import given_values, markers, settings as reading

FOLDER = Path(__file__).parent
SETTINGS = pytest.StashKey()


def pytest_addoption(parser):
    options.add_options(parser)


def pytest_load_initial_conftests(early_config):
    FOLDER.joinpath("early.json").write_text(json.dumps(given_values.is_enabled(early_config)))


def pytest_configure(config):
    options.register_markers(config)
    settings = config.stash[SETTINGS] = reading.read_settings(config)
    if not hasattr(config, "workerinput"):
        described = {
            "enabled": settings.enabled,
            "policy": policy.describe(settings),
            "reports": [str(path) for path in settings.report_paths],
            "run": {
                "budget_bytes": settings.budget_bytes,
                "estimate": settings.estimate,
                "clean": settings.clean,
                "top": settings.top,
                "snapshots": settings.snapshots and str(settings.snapshots),
                "strict": settings.strict,
                "wait_s": settings.wait_s,
                "children": settings.children,
                "peaks": settings.peaks,
                "peaks_baseline": settings.peaks_baseline and str(settings.peaks_baseline),
                "peaks_tolerance": settings.peaks_tolerance,
                "update_peaks": settings.update_peaks,
            },
            "budget": given_values.read_value(config, "max_mb"),
        }
        FOLDER.joinpath("settings.json").write_text(json.dumps(described))


def pytest_collection_modifyitems(config, items):
    if config.stash[SETTINGS].enabled:
        markers.check_markers(items)
    policies = {item.name: markers.policy_of(item, config.stash[SETTINGS])._asdict() for item in items}
    FOLDER.joinpath("policies.json").write_text(json.dumps(policies))
"""


class Run(NamedTuple):
    """What one run of pytest said, and what the policy read."""

    result: pytest.RunResult
    early: Any
    settings: Any
    policies: Any

    @property
    def error(self) -> str:
        """The usage error's lines; fails where the run did not end with one."""
        assert self.result.ret == pytest.ExitCode.USAGE_ERROR, self.result.stdout.str() + self.result.stderr.str()
        text = self.result.stderr.str()
        assert "Traceback" not in text
        assert "INTERNALERROR" not in text + self.result.stdout.str()
        lines = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
        assert len(lines) == 1, text
        return lines[0]


@pytest.fixture
def run_policy(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    plugins = pytester.mkdir("plugins")
    plugins.joinpath("only_policy.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.syspath_prepend(plugins)
    monkeypatch.setenv("PYTHONPATH", str(plugins), prepend=os.pathsep)  # for subprocesses and xdist's workers

    def load(name: str) -> Any:
        file = plugins / name
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def run(*arguments: str, subprocess: bool = False) -> Run:
        for file in plugins.glob("*.json"):
            file.unlink()
        # no:gpuleak: the plugin itself, where it is installed, declares the same options.
        others = ("gpuleak", "cacheprovider", "randomly")
        command = [*(word for name in others for word in ("-p", f"no:{name}")), "-p", "only_policy", *arguments]
        result = pytester.runpytest_subprocess(*command) if subprocess else pytester.runpytest_inprocess(*command)
        return Run(result, load("early.json"), load("settings.json"), load("policies.json"))

    return run

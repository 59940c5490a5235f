"""docs/adopt.md's commands and CI files, followed on a small suite with a leak: from a first look to a gate that holds."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.acceptance.docs.conftest import CLEAN, LEAK, run_script, write_suite
from tests.support.pages import ROOT, blocks_of, commands_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.docs.conftest import Script

pytestmark = pytest.mark.slow

TEXT = (ROOT / "docs" / "adopt.md").read_text(encoding="utf-8")
BLOCKS = blocks_of("adopt.md", "adopt")
SERVICES = {
    "github": {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_WORKSPACE": "."},
    "gitlab": {"GITLAB_CI": "true"},
    "buildkite": {"BUILDKITE": "true"},
}
AGENT = """#!/bin/sh
{ echo "$@"; cat; } >> annotations.md
"""


@pytest.fixture
def service(suite: Path, shell: Script, tmp_path_factory: pytest.TempPathFactory) -> Script:
    """Runs the commands of a page's block; pip, git and Buildkite's agent are stand-ins that need no network."""
    binaries = tmp_path_factory.mktemp("bin")
    for name, script in (("pip", "#!/bin/sh\n"), ("git", "#!/bin/sh\n"), ("buildkite-agent", AGENT)):
        (binaries / name).write_text(script)
        (binaries / name).chmod(0o755)

    def run(script: str, **environment: str) -> Any:
        return shell(f"PATH={binaries}:$PATH\n{script}", CI_PROJECT_DIR=str(suite), **environment)

    return run


def job(name: str, part: str) -> list[str]:
    """The commands of one of the two jobs in a service's file."""
    (job,) = _jobs(yaml.safe_load(BLOCKS[name][1]), part)
    return commands_in(("yaml", yaml.safe_dump(job)))


def _jobs(document: Any, part: str) -> list[Any]:
    jobs = document.get("jobs", document)
    return [jobs[part]] if part in jobs else [step for step in document["steps"] if step["key"] == part]


def test_the_steps_in_their_order(service: Script, suite: Path) -> None:
    look = service(commands_in(BLOCKS["look"])[0])
    assert look.returncode == 0
    assert "1 test would fail without --gpu-leak-warn" in look.stdout
    assert "LEAKED suite/shard_1/test_train.py::test_train" in look.stdout
    assert service(commands_in(BLOCKS["baseline"])[0]).returncode == 0
    assert "test_train.KEPT" in (suite / "gpu-leaks.toml").read_text()
    gate = commands_in(BLOCKS["gate"])[0]
    shrink = commands_in(BLOCKS["shrink"])[0]
    assert [service(step).returncode for step in (gate, shrink)] == [0, 0]
    add_leak(suite)
    assert service(gate).returncode == 1
    for leaking in ("shard_1/test_train.py", "shard_2/test_tune.py"):
        (suite / "suite" / leaking).write_text(CLEAN.format(name="train"))
    assert [service(step).returncode for step in (gate, shrink)] == [0, 1]


def add_leak(suite: Path) -> None:
    """Add a second test that leaks, as a pull request would."""
    (suite / "suite" / "shard_2" / "test_tune.py").write_text(LEAK.format(name="tune"))


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The baseline that the page's command writes for the suite."""
    folder = tmp_path_factory.mktemp("checkout")
    write_suite(folder)
    run_script(folder, commands_in(BLOCKS["baseline"])[0])
    return (folder / "gpu-leaks.toml").read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_the_file_of_a_service(name: str, service: Script, suite: Path, baseline: str) -> None:
    environment = SERVICES[name]
    looked = [service(command, **environment) for command in job(name, "look")]
    assert [done.returncode for done in looked] == [0] * len(looked), looked
    assert (suite / "leaks.html").exists()
    (suite / "gpu-leaks.toml").write_text(baseline)
    (gate,) = job(name, "gate")
    add_leak(suite)
    done = service(gate, **environment)
    assert done.returncode == 1
    assert told(name, done.stdout, suite) == ["suite/shard_2/test_tune.py"]


def told(name: str, output: str, suite: Path) -> list[str]:
    """The files in which a service is told of a leak that fails."""
    if name == "github":
        assert "test_tune" in (suite / "summary.md").read_text()
        return re.findall(r"^::error file=(.*?),", output, re.MULTILINE)
    if name == "gitlab":
        (written,) = _jobs(yaml.safe_load(BLOCKS["gitlab"][1]), "gate")
        assert all((suite / file).exists() for file in written["artifacts"]["reports"].values())
        entries = json.loads((suite / "gpuleak-codequality.json").read_text())
        return [entry["location"]["path"] for entry in entries if entry["severity"] == "major"]
    warned, failed = (suite / "annotations.md").read_text().split("annotate --style error --context gpu-leaks\n")
    assert warned.startswith("annotate --style warning --context gpu-leaks\n### 1 GPU memory leak")
    assert failed.startswith("### 1 GPU memory leak")  # what the baseline lists is none
    return sorted(set(re.findall(r"[\w/]+/test_tune\.py(?=:)", failed)))


def test_a_service_runs_a_job_at_night_or_for_a_change() -> None:
    github = yaml.safe_load(BLOCKS["github"][1])
    assert set(github[True]) == {"schedule", "pull_request"}  # YAML 1.1 reads the key `on` as true
    for name in SERVICES:
        for part, runs in (("look", "schedule"), ("gate", "pull_request|merge_request_event|!= .schedule")):
            (found,) = _jobs(yaml.safe_load(BLOCKS[name][1]), part)
            assert re.search(runs, found["rules"][0]["if"] if "rules" in found else found["if"])


def test_every_block_is_tried_and_the_page_is_short() -> None:
    assert sorted(BLOCKS) == ["baseline", "buildkite", "gate", "github", "gitlab", "look", "shrink"]
    assert TEXT.count("```") == 2 * len(BLOCKS)
    prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE))
    assert len(re.findall(r"\S*\w\S*", prose)) < 900


def test_the_figures_are_those_of_the_measurements() -> None:
    measured = " ".join((ROOT / "docs" / "measurements.md").read_text(encoding="utf-8").split())
    for said in ("10.1 times as long", "pytest-memray 1.11 9.2 times", "28.4 times", "1.080", "0.1 to 0.2 s a leak"):
        assert said in measured
    for figure in ("10.1 times", "9.2 times", "28.4 times", "1.080", "| a leak | 0.1 to 0.4 s |"):
        assert figure in TEXT
    assert "| 500 tests that leak into one list | 2.4 | 27 |" in measured

"""The recipes' commands run, and leave what the recipe says: each in a small suite with one leak."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.pages import blocks_of, commands_in

if TYPE_CHECKING:
    from tests.acceptance.docs.conftest import Script

pytestmark = pytest.mark.slow

RECIPES = blocks_of("recipes.md", "recipe")


def commands(name: str) -> list[str]:
    """The commands of ours in a recipe, in their order."""
    return commands_in(RECIPES[name])


def test_github(shell: Script, suite: Path) -> None:
    (command,) = commands("github")
    summary = suite / "summary.md"
    done = shell(command, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary), GITHUB_WORKSPACE=str(suite))
    assert done.returncode == 1
    assert re.search(r"^::error file=suite/shard_1/test_train.py,line=\d+", done.stdout, re.MULTILINE), done.stdout
    assert "test_train" in summary.read_text()
    assert json.loads((suite / "leaks.sarif").read_text())["version"] == "2.1.0"
    assert (suite / "leaks.html").exists()


def test_shards(shell: Script, suite: Path) -> None:
    tests, *gate = commands("shards")
    shards = [tests.replace("${{ matrix.shard }}", str(number)) for number in (1, 2)]
    assert [shell(shard).returncode for shard in shards] == [1, 0]
    assert [shell(command).returncode for command in gate] == [0, 1]
    assert len(json.loads((suite / "all.json").read_text())["tests"]) == 2


def test_gitlab(shell: Script, suite: Path) -> None:
    (command,) = commands("gitlab")
    assert shell(command, GITLAB_CI="true", CI_PROJECT_DIR=str(suite)).returncode == 1
    (entry,) = json.loads((suite / "gpuleak-codequality.json").read_text())
    assert entry["location"]["path"] == "suite/shard_1/test_train.py"
    for file in yaml.safe_load(RECIPES["gitlab"][1])["tests"]["artifacts"]["reports"].values():
        assert (suite / file).exists()


def test_jenkins(shell: Script, suite: Path) -> None:
    (command,) = commands("jenkins")
    assert shell(command).returncode == 1
    assert "GPU LEAK" in (suite / "junit.xml").read_text()


def test_pre_commit(shell: Script) -> None:
    (command,) = commands("pre-commit")
    assert "1 leaked, 1 clean" in shell(command).stdout


def test_nightly(shell: Script, suite: Path) -> None:
    (nightly,), (difference,) = commands("nightly"), commands("nightly-diff")
    shell("pytest -q --gpu-leak --gpu-leak-report=yesterday.json suite/shard_2")
    assert shell(nightly).returncode == 1
    (finding,) = json.loads((suite / "nightly.json").read_text())["tests"][0]["findings"]
    assert finding["kind"] == "growing"
    done = shell(difference)
    assert (done.returncode, "NEW" in done.stdout) == (1, True)


def test_bisecting(shell: Script, suite: Path) -> None:
    (script,) = commands("bisect")
    shell("pytest -q --gpu-leak --gpu-leak-report=report.json")
    fingerprint = json.loads((suite / "report.json").read_text())["tests"][0]["findings"][0]["fingerprint"]
    test = "suite/shard_1/test_train.py"
    assert shell(script, TEST=test, FINGERPRINT=fingerprint).returncode == 1
    assert shell(script, TEST="suite/shard_2", FINGERPRINT=fingerprint).returncode == 0
    (suite / test).write_text("syntax error")
    assert shell(script, TEST=test, FINGERPRINT=fingerprint).returncode == 125


@pytest.mark.torch
def test_ranks(shell: Script, suite: Path) -> None:
    (script,) = commands("ranks")
    done = shell(script, CUDA_VISIBLE_DEVICES="")
    assert sorted(path.name for path in suite.glob("leaks*.json")) == [
        "leaks.json",
        "leaks.rank0.json",
        "leaks.rank1.json",
    ], done.stdout + done.stderr
    assert len(json.loads((suite / "leaks.json").read_text())["tests"]) == 2


def test_every_recipe_is_tried() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert len(RECIPES) == 9
    assert all(f'"{name}"' in source for name in RECIPES)

"""The recipes' commands run, and leave what the recipe says: each in a small suite with one leak."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.conftest import STAND_IN

if TYPE_CHECKING:
    from collections.abc import Callable

    Script = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
RECIPE = re.compile(r"^( *)<!-- recipe: (\S+) -->\n\1```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
RECIPES = {
    name: (language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE))
    for indent, name, language, text in RECIPE.findall((ROOT / "docs" / "recipes.md").read_text(encoding="utf-8"))
}
LEAK = """
import pytest
from tests.support.standin import Buffer

KEPT = []

@pytest.mark.quick
def test_{name}():
    KEPT.append(Buffer(100))
"""
CLEAN = """
import pytest

@pytest.mark.quick
def test_{name}():
    pass
"""
INI = "[pytest]\nmarkers = quick\naddopts = -p no:cacheprovider -p no:hypothesispytest -p no:randomly\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A checkout with two folders of tests; one test leaks."""
    (tmp_path / "conftest.py").write_text(textwrap.dedent(STAND_IN))
    (tmp_path / "pytest.ini").write_text(INI)
    for folder, name, source in (("shard_1", "train", LEAK), ("shard_2", "export", CLEAN)):
        (tmp_path / "suite" / folder).mkdir(parents=True)
        (tmp_path / "suite" / folder / f"test_{name}.py").write_text(source.format(name=name))
    return tmp_path


@pytest.fixture
def shell(suite: Path) -> Script:
    """Runs a script as a CI service would; the recipe's ``tests`` is the suite's folder ``suite``."""

    def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
        return subprocess.run(
            ["sh", "-c", script.replace("tests/", "suite/")],
            cwd=suite,
            env={**kept, "PATH": binaries, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


def commands(name: str) -> list[str]:
    """The commands of ours in a recipe, in their order."""
    language, text = RECIPES[name]
    if language == "sh":
        return [text]
    if language == "groovy":
        return re.findall(r"sh '(.*)'", text)
    found: list[str] = []
    collect(yaml.safe_load(text), found)
    return [command for command in found if command.startswith(("pytest ", "gpuleak "))]


def collect(value: Any, found: list[str]) -> None:
    """Every text in a document."""
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            collect(part, found)


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


def test_adopting(shell: Script, suite: Path) -> None:
    steps = [commands(name)[0] for name in ("adopt", "gate", "shrink")]
    assert [shell(step).returncode for step in steps] == [0, 0, 0]
    leaking = suite / "suite" / "shard_1" / "test_train.py"
    leaking.write_text(CLEAN.format(name="train"))
    assert [shell(step).returncode for step in steps[1:]] == [0, 1]


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
    assert len(RECIPES) == 12
    assert all(f'"{name}"' in source for name in RECIPES)

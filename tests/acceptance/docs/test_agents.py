"""AGENTS.md's commands lead an agent from a planted leak to a run without one: run, read, cut at the marked line, run."""

from __future__ import annotations

import functools
import json
import os
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.session.options import OPTIONS
from tests.acceptance.docs.conftest import ALONE, run_script
from tests.conftest import STAND_IN

if TYPE_CHECKING:
    from tests.acceptance.docs.conftest import Script

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
RUN, SHOW, AGAIN = re.findall(r"^ *```sh\n *(.*)\n *```$", TEXT, re.MULTILINE)
APP = """
HISTORY = []

def train(buffer):
    step = {"loss": buffer}
    HISTORY.append(step)
    return step
"""
TESTS = """
import app
from tests.support.standin import Buffer

def test_trains():
    assert app.train(Buffer(100))

def test_clean():
    assert Buffer(100)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Script:
    """Runs a command in a checkout with one leak, whose way from the global takes several references."""
    (tmp_path / "conftest.py").write_text(textwrap.dedent(STAND_IN))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {ALONE}\n")
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "test_app.py").write_text(TESTS)
    search = f"{tmp_path}{os.pathsep}{ROOT}"
    return functools.partial(run_script, tmp_path, PYTHONPATH=search, PYTHONDONTWRITEBYTECODE="1")


def test_the_commands_lead_from_a_leak_to_a_clean_run(shell: Script, tmp_path: Path) -> None:
    first = shell(RUN)
    assert (first.returncode, " leaked" in first.stdout.splitlines()[-1]) == (1, True), first.stdout + first.stderr
    (test,) = json.loads(shell(SHOW).stdout)["tests"]
    (finding,) = test["findings"]
    edit = finding["edit"]
    assert edit == {"file": "app.py", "line": 6, "code": "HISTORY.append(step)"}
    assert f"cut here, at {edit['file']}:{edit['line']}" in " ".join(first.stdout.split())
    cut(tmp_path / edit["file"], edit)
    again = shell(AGAIN.replace("TESTS", test["nodeid"]))
    assert (again.returncode, shell(RUN).returncode) == (0, 0), again.stdout
    assert json.loads(shell(SHOW).stdout)["tests"] == []


def cut(file: Path, edit: dict[str, Any]) -> None:
    """Take out the marked line, once it is the one that the report quotes."""
    lines = file.read_text().splitlines()
    assert lines[edit["line"] - 1].strip() == edit["code"]
    del lines[edit["line"] - 1]
    file.write_text("\n".join(lines) + "\n")


def test_it_names_fields_and_codes_that_exist() -> None:
    from pytest_gpuleak.model.codes.table import CODES
    from pytest_gpuleak.model.finding_codec import encode_finding
    from pytest_gpuleak.model.findings import Finding

    rows = re.findall(r"^ *\| (`.*?) \|", TEXT, re.MULTILINE)
    named = {name.partition("[")[0] for row in rows for name in re.findall(r"`([\w.\[\]]+)`", row)}
    assert len(named) == 7
    assert named <= {*encode_finding(Finding("growing", True, "cpu", 1, 1, 1, "aa"))}
    assert set(re.findall(r"GL\d+", TEXT)) <= CODES.keys()
    assert len(TEXT.splitlines()) < 60


def test_the_options_that_it_warns_of_exist() -> None:
    """That these are the command line's: tests/acceptance/docs/test_readme.py."""
    assert set(re.findall(r"--gpu-leak[\w-]*", TEXT)) <= {option.flag for option in OPTIONS}

"""A small checkout with one leak, and a shell in it, for the pages whose commands are run."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import OFF, STAND_IN
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    Script = Callable[..., subprocess.CompletedProcess[str]]

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
ALONE = " ".join(["-p no:cacheprovider -p no:hypothesispytest -p no:randomly -p no:rerunfailures", *OFF])
"""Without other plugins: to load them takes a third of a run of one test."""
INI = f"[pytest]\nmarkers = quick\naddopts = {ALONE}\n"


def write_suite(folder: Path) -> None:
    """Write a checkout with two folders of tests; one test leaks."""
    (folder / "conftest.py").write_text(textwrap.dedent(STAND_IN))
    (folder / "pytest.ini").write_text(INI)
    for part, name, source in (("shard_1", "train", LEAK), ("shard_2", "export", CLEAN)):
        (folder / "suite" / part).mkdir(parents=True)
        (folder / "suite" / part / f"test_{name}.py").write_text(source.format(name=name))


def run_script(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a CI service would; the recipe's ``tests`` is the suite's folder ``suite``."""
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
    return subprocess.run(
        ["sh", "-c", script.replace("tests/", "suite/")],
        cwd=folder,
        env={**kept, "PATH": binaries, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A checkout with two folders of tests; one test leaks."""
    write_suite(tmp_path)
    return tmp_path


@pytest.fixture
def shell(suite: Path) -> Script:
    """Runs a script in the suite's checkout."""
    return functools.partial(run_script, suite)

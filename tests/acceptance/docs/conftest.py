"""A small checkout with one leak, and a shell in it, for the pages whose commands are run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import STAND_IN
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

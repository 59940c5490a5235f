"""A team adopts the check on a suite that leaks already: einops' own tests, with leaks planted in the library.

Each step is a run of pytest or of `gpuleak` in a process of its own, as a CI job would make it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Job = Callable[..., subprocess.CompletedProcess[str]]

PLANTED = """
import os

from einops._backends import TorchBackend

KEPT = {}


def plant(name):
    original, kept = getattr(TorchBackend, name), KEPT.setdefault(name, [])

    def keeping(self, *args, **options):
        result = original(self, *args, **options)
        kept.append(result)
        return result

    setattr(TorchBackend, name, keeping)


for name in os.environ["PLANTED"].split():
    plant(name)
"""
WORKFLOW = """\
[pytest]
gpu_leak = true
gpu_leak_baseline = known-leaks.toml
gpu_leak_report = report.json
filterwarnings = ignore
"""
TESTS = "tiling or functional or concatenations or repeat_imperatives or list_inputs"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Runs a command in a checkout of the suite, with leaks planted: returns what a CI job would see."""
    suite = Path(pytest.importorskip("einops.tests").__file__).parent
    pytest.importorskip("torch")
    shutil.copytree(suite, tmp_path / "suite", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "pytest.ini").write_text(WORKFLOW)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "EINOPS_TEST_BACKENDS": "torch", "COLUMNS": "120"}

    def run(module: str, *arguments: str, planted: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=tmp_path,
            env={**environment, "PLANTED": planted},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


@pytest.mark.slow
def test_adopt_run_stop_a_new_leak_and_shrink(job: Job, tmp_path: Path) -> None:
    def suite(*arguments: str, planted: str) -> subprocess.CompletedProcess[str]:
        files = ("suite/test_einsum.py", "suite/test_ops.py")
        options = ("-q", "-p", "planted", "-p", "no:cacheprovider", "-k", TESTS)
        return job("pytest", *options, *arguments, *files, planted=planted)

    known, report = tmp_path / "known-leaks.toml", tmp_path / "report.json"

    adopted = suite("--gpu-leak-update-baseline", planted="tile stack_on_zeroth_dimension")
    assert adopted.returncode == 0, adopted.stdout
    assert known.read_text().count("[[leak]]") == 2
    assert 'holder = "planted.KEPT"' in known.read_text()

    clean = suite(planted="tile stack_on_zeroth_dimension")
    assert clean.returncode == 0, clean.stdout
    assert job("pytest_gpuleak", "gate", str(report), "--baseline", str(known)).returncode == 0

    stopped = suite(planted="tile stack_on_zeroth_dimension einsum")
    assert stopped.returncode == 1, stopped.stdout
    assert "1 leaked" in stopped.stdout
    gate = job("pytest_gpuleak", "gate", str(report), "--baseline", str(known))
    assert gate.returncode == 1, gate.stdout
    for seen in (stopped.stdout, gate.stdout):
        assert "suite/test_einsum.py::test_functional" in seen
        assert "planted.KEPT" in seen
        assert "['einsum']" in seen

    mended = suite(planted="tile")
    assert mended.returncode == 0, mended.stdout
    assert "1 stale" in mended.stdout
    gate = job("pytest_gpuleak", "gate", str(report), "--baseline", str(known), "--fail-stale")
    assert gate.returncode == 1, gate.stdout
    assert "suite/test_ops.py::test_concatenations_and_stacking" in gate.stdout

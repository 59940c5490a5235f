"""A team adopts the check on a suite that leaks already: einops' own tests, with leaks planted in the library.

Each step is a run of pytest or of `gpuleak` in a process of its own, as a CI job would make it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Job = Callable[..., pytest.RunResult]

ROOT = Path(__file__).resolve().parents[3]
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


os.environ["EINOPS_TEST_BACKENDS"] = "torch"
for name in os.environ["GPULEAK_TEST_PLANTED"].split():
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
def job(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Runs pytest, or the command line, in a checkout of the suite, with leaks planted: returns what a CI job would see."""
    pytest.importorskip("torch")
    suite = Path(pytest.importorskip("einops.tests").__file__).parent
    shutil.copytree(suite, pytester.path / "suite", ignore=shutil.ignore_patterns("__pycache__"))
    (pytester.path / "planted.py").write_text(PLANTED)
    (pytester.path / "pytest.ini").write_text(WORKFLOW)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(pytester.path), str(ROOT)]), prepend=os.pathsep)
    monkeypatch.setenv("COLUMNS", "120")

    def run(module: str, *arguments: str, planted: str = "") -> pytest.RunResult:
        monkeypatch.setenv("GPULEAK_TEST_PLANTED", planted)
        if module == "pytest":
            return pytester.runpytest_subprocess(*arguments)
        return pytester.run(sys.executable, "-m", module, *arguments)

    return run


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_adopt_run_stop_a_new_leak_and_shrink(job: Job, pytester: pytest.Pytester) -> None:
    def suite(*arguments: str, planted: str) -> pytest.RunResult:
        files = ("suite/test_einsum.py", "suite/test_ops.py")
        options = ("-q", "-p", "planted", "-p", "no:cacheprovider", "-k", TESTS)
        return job("pytest", *options, *arguments, *files, planted=planted)

    known, report = pytester.path / "known-leaks.toml", pytester.path / "report.json"

    adopted = suite("--gpu-leak-update-baseline", planted="tile stack_on_zeroth_dimension")
    assert adopted.ret == 0, adopted.stdout.str()
    assert known.read_text().count("[[leak]]") == 2
    assert 'holder = "planted.KEPT"' in known.read_text()

    clean = suite(planted="tile stack_on_zeroth_dimension")
    assert clean.ret == 0, clean.stdout.str()
    assert job("pytest_gpuleak", "gate", str(report), "--baseline", str(known)).ret == 0

    stopped = suite(planted="tile stack_on_zeroth_dimension einsum")
    assert stopped.ret == 1, stopped.stdout.str()
    assert "1 leaked" in stopped.stdout.str()
    gate = job("pytest_gpuleak", "gate", str(report), "--baseline", str(known))
    assert gate.ret == 1, gate.stdout.str()
    for seen in (stopped.stdout.str(), gate.stdout.str()):
        assert "suite/test_einsum.py::test_functional" in seen
        assert "planted.KEPT" in seen
        assert "['einsum']" in seen

    mended = suite(planted="tile")
    assert mended.ret == 0, mended.stdout.str()
    assert "1 stale" in mended.stdout.str()
    gate = job("pytest_gpuleak", "gate", str(report), "--baseline", str(known), "--fail-stale")
    assert gate.ret == 1, gate.stdout.str()
    assert "suite/test_ops.py::test_concatenations_and_stacking" in gate.stdout.str()

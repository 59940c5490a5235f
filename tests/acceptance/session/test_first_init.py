"""Who initialised a device first, and `--gpu-leak-no-init-at-collection`."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.cli.merge import merge_reports
from pytest_gpuleak.cli.output import render_report
from pytest_gpuleak.reports.json.read import read_report
from tests.conftest import forget_torch
from tests.support.schema import check_schema

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run, Runner

pytestmark = pytest.mark.slow

TORCH = """
    _initialized = False
    _queued_calls = []

    def is_available():
        return True

    def init():
        global _initialized
        if not _initialized:
            for call, _ in _queued_calls:
                call()
            _initialized = True
"""
"""What of `torch.cuda` matters here. That the real one is the same is shown by `test_with_the_real_torch`."""

AT_COLLECTION = "import app.kernels\n\ndef test_it(): pass\n"
ONLY_USED = "import torch.cuda\n\ndef test_it(): torch.cuda.init()\n"
KERNELS_LINE = (
    "gpu-leak: cuda was first initialised while test_it.py was collected, at app/kernels.py:3 (import of app.kernels); "
    "forked processes cannot use it"
)
FAILS = "; the run fails (--gpu-leak-no-init-at-collection)"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a package that initialises the device when it is imported, and a small torch, installed."""
    forget_torch(monkeypatch)
    for name, text in {
        "site-packages/torch/__init__.py": "",
        "site-packages/torch/cuda.py": TORCH,
        "app/__init__.py": "",
        "app/kernels.py": "import torch.cuda\n\ntorch.cuda.init()\n",
        "pytest.ini": "[pytest]\npythonpath = site-packages .\n",
    }.items():
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return pytester.path


def said(found: Run) -> list[str]:
    return [line for line in found.result.outlines if "first initialised" in line]


def marked(file: Path) -> dict[str, int]:
    """The lines of a file that end in a comment, by the comment's word."""
    lines = enumerate(file.read_text().splitlines(), 1)
    return {line.rpartition("# ")[2]: number for number, line in lines if "# " in line}


def at_collection(run: Runner, *options: str, apart: bool = False) -> Run:
    return run(AT_COLLECTION, *options, apart=apart)


@pytest.mark.usefixtures("project")
def test_an_import_at_collection_is_told_and_shown_and_merged(run: Runner, pytester: pytest.Pytester) -> None:
    found = at_collection(run, apart=True)
    assert said(found) == [KERNELS_LINE]
    assert found.result.ret == 0
    check_schema(found.report)
    first = found.report["summary"]["first_init"]
    report = read_report(pytester.path / "report.json")
    merged = merge_reports([report])
    assert merged.summary["first_init"] == report.summary["first_init"] == first
    assert KERNELS_LINE in render_report(merged, 0)
    assert first.pop("pid") not in (0, os.getpid())
    assert first == {
        "device": "cuda",
        "by": "torch.cuda",
        "phase": "collection",
        "worker": "main",
        "nodeid": "test_it.py",
        "hook": None,
        "fixture": None,
        "file": "app/kernels.py",
        "line": 3,
        "importing": "app.kernels",
        "caller": None,
        "thread": None,
    }


@pytest.mark.usefixtures("project")
def test_use_by_a_test_is_told_with_v_and_in_the_report(run: Runner) -> None:
    found = run(ONLY_USED)
    assert said(found) == []
    assert found.report["summary"]["first_init"]["phase"] == "test"
    assert said(run(ONLY_USED, "-v", "--gpu-leak-no-init-at-collection")) == [
        "gpu-leak: cuda was first initialised in test_it.py::test_it, at test_it.py:4"
    ]


@pytest.mark.usefixtures("project")
def test_whether_a_device_is_available_initialises_nothing(run: Runner) -> None:
    found = run("import torch.cuda\nassert torch.cuda.is_available()\ndef test_it(): pass\n", "-v")
    assert said(found) == []
    assert "first_init" not in found.report["summary"]


@pytest.mark.parametrize(
    ("conftest", "line"),
    [
        ("import torch.cuda\ntorch.cuda.init()  # here\n", "while conftest.py was imported, at conftest.py:{here}"),
        ("import app.kernels\n", "while conftest.py was imported, at app/kernels.py:3 (import of app.kernels)"),
        (
            "def pytest_configure():\n    import torch.cuda\n    torch.cuda.init()  # here\n",
            "before the tests were collected, in the hook pytest_configure, at conftest.py:{here}",
        ),
        (
            "def pytest_collection_modifyitems():\n    import torch.cuda\n    torch.cuda.init()  # here\n",
            "while the tests were collected, in the hook pytest_collection_modifyitems, at conftest.py:{here}",
        ),
        (
            "def pytest_generate_tests(metafunc):\n    import torch.cuda\n    torch.cuda.init()  # here\n",
            "while test_it.py was collected, at conftest.py:{here}",
        ),
    ],
)
def test_before_the_tests(run: Runner, project: Path, conftest: str, line: str) -> None:
    (project / "conftest.py").write_text(conftest)
    found = run("def test_it(): pass\n", "--gpu-leak-no-init-at-collection")
    expected = line.format_map(marked(project / "conftest.py"))
    assert said(found) == [f"gpu-leak: cuda was first initialised {expected}; forked processes cannot use it{FAILS}"]
    assert found.result.ret == 1
    found.result.assert_outcomes(passed=1)


def test_a_conftest_of_a_folder(run: Runner, project: Path) -> None:
    (project / "tests").mkdir()
    (project / "tests/conftest.py").write_text("import app.kernels\n")
    (project / "tests/test_below.py").write_text("def test_below(): pass\n")
    assert said(run("")) == [
        KERNELS_LINE.replace("while test_it.py was collected", "while tests/conftest.py was imported")
    ]


@pytest.mark.usefixtures("cold")
def test_a_plugin_that_is_loaded_before_this_one_can_watch(
    run: Runner, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "early.py").write_text("import app.kernels\n")
    monkeypatch.setenv("PYTHONPATH", f"{project}{os.pathsep}{project / 'site-packages'}", prepend=os.pathsep)
    assert said(run("def test_it(): pass\n", "-p", "early", apart=True)) == [
        "gpu-leak: cuda was first initialised before the tests were collected; forked processes cannot use it"
    ]


def test_a_conftest_that_switches_the_plugin_on(run: Runner, project: Path) -> None:
    (project / "conftest.py").write_text(
        "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_configure(config): config.option.gpu_leak = True\n"
    )
    found = run(AT_COLLECTION, "-p", "no:cacheprovider", plugin="-s")
    assert said(found) == [KERNELS_LINE]


SHAPES = {
    "fixture": (
        """
        import pytest, torch.cuda

        @pytest.fixture(scope="session")  # fixture
        def model():
            return torch.cuda.init()  # here

        def test_plain(): pass

        def test_it(model): pass
        """,
        "in the setup of fixture 'model' (test_it.py:{fixture}) of test_it.py::test_it, at test_it.py:{here}",
    ),
    "import in a test": (
        "def test_it():\n    import app.kernels\n",
        "in test_it.py::test_it, at app/kernels.py:3 (import of app.kernels)",
    ),
    "thread": (
        """
        import threading, torch.cuda

        def load():
            torch.cuda.init()  # here

        def test_it():
            thread = threading.Thread(target=load, name="loader")
            thread.start()
            thread.join()
        """,
        "in test_it.py::test_it, at test_it.py:{here}, in the thread 'loader'",
    ),
    "teardown": (
        """
        import torch.cuda

        def teardown_module():
            torch.cuda.init()  # here

        def test_it(): pass
        """,
        "in test_it.py::test_it, at test_it.py:{here}",
    ),
    "setUpClass": (
        """
        import unittest, torch.cuda

        class TestIt(unittest.TestCase):
            @classmethod  # fixture
            def setUpClass(cls):
                torch.cuda.init()  # here

            def test_it(self): pass
        """,
        "in the setup of fixture 'TestIt.setUpClass' (test_it.py:{fixture}) of test_it.py::TestIt::test_it, at test_it.py:{here}",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_by_the_tests(run: Runner, project: Path, shape: str) -> None:
    suite, line = SHAPES[shape]
    found = run(suite, "-v", "--gpu-leak-no-init-at-collection")
    expected = line.format_map(marked(project / "test_it.py"))
    assert said(found) == [f"gpu-leak: cuda was first initialised {expected}"]
    assert found.result.ret == 0


@pytest.mark.usefixtures("project")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_does_not_report_for_its_parent(run: Runner) -> None:
    suite = """
        import os, torch.cuda

        def test_it():
            pid = os.fork()
            if not pid:
                torch.cuda.init()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        """
    found = run(suite, "-v", apart=True)
    assert said(found) == []
    assert "first_init" not in found.report["summary"]
    found.result.assert_outcomes(passed=1)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "suite",
    [
        "import sys, unittest.mock as m\nsys.modules['torch'] = sys.modules['torch.cuda'] = m.MagicMock()\nimport torch.cuda\n",
        "import importlib, torch.cuda\nimportlib.reload(torch.cuda)\n",
        "import torch.cuda\ndel torch.cuda._queued_calls\n",
    ],
    ids=["replaced", "reloaded", "without a queue"],
)
def test_a_torch_that_is_no_longer_its_own(run: Runner, suite: str) -> None:
    found = run(suite + "\ndef test_it(): pass\n", "-v", "--gpu-leak-no-init-at-collection")
    assert (said(found), found.result.ret) == ([], 0)
    found.result.assert_outcomes(passed=1)


@pytest.mark.usefixtures("project")
def test_a_call_that_was_taken_out_of_the_queue_is_told_without_its_line(run: Runner) -> None:
    suite = "import torch.cuda\ntorch.cuda._queued_calls.clear()\ntorch.cuda.init()\ndef test_it(): pass\n"
    assert said(run(suite)) == [
        "gpu-leak: cuda was first initialised while the tests were collected; forked processes cannot use it"
    ]


@pytest.mark.usefixtures("project")
def test_the_option_fails_the_run(run: Runner) -> None:
    found = at_collection(run, "--gpu-leak-no-init-at-collection", "-q")
    assert said(found) == [KERNELS_LINE + FAILS]
    assert found.result.ret == 1
    assert said(at_collection(run, "-q")) == []


def test_it_is_read_from_the_ini(run: Runner, project: Path) -> None:
    with (project / "pytest.ini").open("a") as ini:
        ini.write("gpu_leak_no_init_at_collection = true\n")
    assert at_collection(run).result.ret == 1


@pytest.mark.usefixtures("project")
def test_where_tests_are_only_collected(run: Runner) -> None:
    found = run(AT_COLLECTION, "--collect-only", "--gpu-leak-no-init-at-collection", report=False)
    assert (said(found), found.result.ret) == ([KERNELS_LINE + FAILS], 1)
    found = run(AT_COLLECTION, "--collect-only", report=False)
    assert (said(found), found.result.ret) == ([], 0)


@pytest.mark.usefixtures("project")
def test_with_warn_it_fails_nothing_and_that_is_said(run: Runner) -> None:
    found = at_collection(run, "--gpu-leak-no-init-at-collection", "--gpu-leak-warn")
    assert (said(found), found.result.ret) == ([KERNELS_LINE], 0)
    found.result.stdout.fnmatch_lines(
        ["gpu-leak: --gpu-leak-warn fails nothing, so --gpu-leak-no-init-at-collection has no effect"]
    )


@pytest.mark.usefixtures("project")
def test_without_the_switch_it_does_nothing(run: Runner) -> None:
    found = run(AT_COLLECTION, "--gpu-leak-no-init-at-collection", plugin="--no-gpu-leak", report=False)
    assert (said(found), found.result.ret) == ([], 0)


@pytest.mark.usefixtures("project")
def test_under_xdist_it_is_said_once(run: Runner) -> None:
    pytest.importorskip("xdist")
    found = at_collection(run, "-p", "xdist", "-n2", "--gpu-leak-no-init-at-collection", apart=True)
    assert said(found) == [KERNELS_LINE + FAILS]
    assert found.result.ret == 1
    assert found.report["summary"]["first_init"]["worker"] == "gw0"


REAL = """
    import pytest
    import torch
    from tests.support import faked_cuda

    faked_cuda.install()

    def test_it():
        {}
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    "code",
    [
        "torch.cuda.init()",
        "torch.zeros(3, device='cuda')",
        "torch.ones(2).to('cuda:0')",
        "with torch.device('cuda'): torch.ones(2)",
    ],
)
@pytest.mark.usefixtures("forked")
def test_with_the_real_torch(run: Runner, code: str) -> None:
    """After its `_lazy_init` torch's CPU build fails in most of them: it has no kernels."""
    found = run(REAL.format(code), "-v", apart=True)
    assert said(found) == ["gpu-leak: cuda was first initialised in test_it.py::test_it, at test_it.py:10"]


@pytest.mark.torch
@pytest.mark.usefixtures("cold")
def test_the_real_torch_imported_in_the_middle_of_a_collection(run: Runner) -> None:
    found = run(REAL.format("pass") + "\n    torch.cuda.init()\n", apart=True)
    assert said(found) == [KERNELS_LINE.replace("app/kernels.py:3 (import of app.kernels)", "test_it.py:12")]
    assert found.result.ret == 0

"""The run as a whole: header, section, summary, exit status, reports, and pytest's own options."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.session.run import _growth_that_fails
from tests.support.schema import check_schema

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

pytestmark = pytest.mark.slow

SUITE = """
    import pytest
    KEPT = []

    @pytest.mark.parametrize("i", range(3))
    def test_leaks(i):
        KEPT.append(Buffer(100))

    @pytest.mark.parametrize("i", range(3))
    def test_clean(i):
        assert Buffer(5)
"""


def test_the_header_says_what_fails() -> None:
    assert _growth_that_fails(Policy()) == "any growth"
    assert _growth_that_fails(Policy(growing_tensors=None, growing_bytes=2**21)) == "growth over 2.0 MiB"
    both = _growth_that_fails(Policy(growing_tensors=1, growing_bytes=2**19))
    assert both == "growth over 1 tensor or over 512.0 KiB"


def test_what_is_printed_and_written(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(SUITE, "--junitxml=junit.xml", "--gpu-leak-report=second.json")
    found.result.stdout.fnmatch_lines(
        [
            "gpu-leak: *",
            "test_it.py .L.L.L...*",
            "*= GPU LEAKS =*",
            "LEAKED 300 bytes in 3 tests",
            "  largest  test_it.py::test_leaks?0?, 100 bytes",
            "*held by  test_it.KEPT*",
            "*created  test_it.py:* in test_leaks*",
            "gpu-leak: 3 leaked, 3 clean;*",
            "*6 passed, 3 leaked*",
        ]
    )
    assert found.result.ret == pytest.ExitCode.TESTS_FAILED
    check_report(found)
    first, second = (json.loads((pytester.path / name).read_text()) for name in ("report.json", "second.json"))
    assert first["tests"] == second["tests"]
    suite = ElementTree.parse(pytester.path / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert suite.attrib["errors"] == "3"
    errors = [error.text or "" for error in suite.iter("error")]
    assert all("GPU LEAK" in text and "test_it.KEPT" in text for text in errors)


def test_verbose_and_a_maximum_of_failures(run: Runner) -> None:
    found = run(SUITE, "-v", "--maxfail=2")
    found.result.stdout.fnmatch_lines(["*test_leaks?0? LEAKED*"])
    assert len(found.tests) == 2


def test_a_clean_run_prints_one_line(run: Runner) -> None:
    found = run("def test_it():\n    pass\n")
    header = "gpu-leak: *; fails on any growth, fails on 1.0 MiB or more left behind; re-runs a suspect 1 x"
    found.result.stdout.fnmatch_lines([header, "gpu-leak: 0 leaked, 1 clean;*"])
    found.result.stdout.no_fnmatch_line("*GPU LEAKS*")
    assert found.result.ret == 0


def test_quiet_keeps_the_summary(run: Runner) -> None:
    found = run(SUITE, "-q")
    found.result.stdout.fnmatch_lines(["gpu-leak: 3 leaked, 3 clean;*"])
    found.result.stdout.no_fnmatch_line("*GPU LEAKS*")


def test_off_says_nothing(run: Runner) -> None:
    found = run(SUITE, plugin="--no-gpu-leak")
    found.result.stdout.no_fnmatch_line("*gpu-leak*")
    assert (found.report, found.result.ret) == ({}, 0)


def check_report(found: Run) -> None:
    check_schema(found.report)
    summary = found.report["summary"]
    assert (summary["tests"], summary["leaked"], summary["clean"]) == (6, 3, 3)
    for name, test in found.tests.items():
        assert test["verdict"] == ("leaked" if "leaks" in name else "clean")
        if test["findings"]:
            assert test["findings"][0]["kind"] == "growing"


# Groups, and files, which are scheduled alike: tests/acceptance/journal/test_workers.py.
@pytest.mark.parametrize("distribution", ["load", "each"])
def test_under_xdist(run: Runner, distribution: str) -> None:
    pytest.importorskip("xdist")
    tx = ["--tx", "2*popen"] if distribution == "each" else ["-n2"]
    found = run(SUITE, *tx, f"--dist={distribution}", apart=True)
    if distribution == "each":
        assert found.report["summary"]["leaked"] == 6
    else:
        check_report(found)
    assert {test["worker"] for test in found.report["tests"]} <= {"gw0", "gw1"}
    assert found.result.ret == 1
    found.result.stdout.fnmatch_lines(["*LEAKED test_it.py::test_leaks*"])


def test_a_bad_marker_under_xdist(run: Runner) -> None:
    pytest.importorskip("xdist")
    found = run(
        """
        import pytest

        @pytest.mark.gpu_leak(tensor=1)
        def test_it():
            pass
        """,
        "-n2",
        apart=True,
    )
    assert found.result.ret == pytest.ExitCode.USAGE_ERROR
    (error,) = [line for line in found.result.errlines if line.startswith("ERROR: ")]
    assert error.startswith("ERROR: pytest.mark.gpu_leak: unknown argument tensor=1, accepted are: ")
    assert "INTERNALERROR" not in found.result.stdout.str()
    assert "Traceback" not in found.result.stderr.str()


def test_last_failed(run: Runner, pytester: pytest.Pytester) -> None:
    run(SUITE, "-p", "cacheprovider")
    found = run("", "-p", "cacheprovider", "--lf")
    assert set(found.tests) == {"test_leaks[0]", "test_leaks[1]", "test_leaks[2]"}


def test_without_a_terminal(run: Runner) -> None:
    found = run(SUITE, "-p", "no:terminal", apart=True)
    check_report(found)
    assert found.result.ret == 1


def test_collect_only(run: Runner) -> None:
    found = run(SUITE, "--collect-only")
    assert (found.report, found.result.ret) == ({}, 0)
    found.result.stdout.no_fnmatch_line("gpu-leak: *clean*")


@pytest.mark.parametrize("options", ["--setup-only", "--setup-plan", "--setup-show --pdb -s --tb=no"])
def test_with_other_options(run: Runner, options: str) -> None:
    found = run(SUITE, *options.split(), apart=True)
    assert found.result.ret in (0, 1)
    assert "INTERNALERROR" not in found.result.stdout.str()
    assert "switched off" not in found.result.stdout.str()


def test_a_re_run_calls_no_test_where_setups_alone_are_asked_for(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(
        """
        import pathlib, pytest
        KEPT = []

        @pytest.fixture
        def leaky():
            KEPT.append(Buffer())

        def test_it(leaky):
            pathlib.Path("called").touch()
        """,
        "--setup-only",
    )
    assert found.finding("test_it")["kind"] == "growing"
    assert not (pytester.path / "called").exists()


def test_a_report_that_cannot_be_written_at_the_end(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(
        """
        import pathlib, shutil

        def test_it():
            shutil.rmtree("reports")
        """,
        f"--gpu-leak-report={pytester.mkdir('reports') / 'late.json'}",
    )
    assert found.result.ret == 1
    found.result.assert_outcomes(passed=1)
    found.result.stdout.fnmatch_lines(["gpu-leak: the report *late.json could not be written: *"])
    assert found.verdicts == {"test_it": "clean"}


def test_markers(run: Runner) -> None:
    found = run(
        """
        import pytest
        KEPT = []

        @pytest.mark.allow_gpu_leak(reason="shared on purpose")
        def test_allowed():
            KEPT.append(Buffer(100))

        @pytest.mark.gpu_leak(tensors=1)
        def test_one():
            KEPT.append(Buffer(100))

        @pytest.mark.gpu_leak(mb="1KiB")
        class TestBytes:
            def test_within(self):
                KEPT.extend([Buffer(100), Buffer(100)])

            def test_over(self):
                KEPT.append(Buffer(2000))

            @pytest.mark.gpu_leak(mb=1)
            def test_closer(self):
                KEPT.append(Buffer(2000))
        """
    )
    assert found.verdicts == {
        "test_allowed": "allowed",
        "test_one": "noted",
        "TestBytes::test_within": "noted",
        "TestBytes::test_over": "leaked",
        "TestBytes::test_closer": "noted",
    }
    assert found.tests["test_allowed"]["allowed"] == "shared on purpose"


def test_scan_marker(run: Runner) -> None:
    found = run(
        """
        import gc, pytest
        KEPT, real = [], type(gc.collect)

        @pytest.mark.gpu_leak(scan="scan")
        def test_scanned():
            assert type(gc.collect) is type(len), "nothing is replaced in scan mode"
            KEPT.append(Buffer(100))

        def test_epoch():
            assert type(gc.collect) is not type(len)
            KEPT.append(Buffer(100))

        @pytest.mark.gpu_leak(scan="scan")
        def test_clean():
            Buffer()

        def test_clean_too():
            Buffer()
        """
    )
    assert list(found.verdicts.values()) == ["leaked", "leaked", "clean", "clean"]


@pytest.mark.parametrize(
    "target",
    [
        "session.leak_check:LeakCheck.begin",
        "engine.run_tracker:RunTracker.left_arrays",
        "session.leak_check:LeakCheck.setup_begins",
        "session.leak_check:LeakCheck.setup_ends",
        "session.leak_check:LeakCheck.teardown_ends",
    ],
)
def test_a_fault_of_ours_leaves_the_run_alone(run: Runner, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    module, _, name = target.partition(":")
    owner, _, method = name.partition(".")
    monkeypatch.setattr(getattr(importlib.import_module(f"pytest_gpuleak.{module}"), owner), method, broken)
    found = run(
        """
        import pytest
        KEPT = []

        @pytest.fixture(scope="module")
        def model():
            yield 1

        def test_leaks(model):
            KEPT.append(Buffer(100))

        def test_next(model):
            pass
        """
    )
    found.result.assert_outcomes(passed=2, warnings=1)
    found.result.stdout.fnmatch_lines(["*failed: RuntimeError: a fault of ours*"])
    assert (
        "a fault of ours"
        in [test["why_unchecked"] or "" for test in found.report["tests"]][-1 if "teardown" in target else 0]
    )
    assert found.result.ret == 0 or found.verdicts["test_leaks"] == "leaked"


def test_hostile_names_reach_no_terminal(run: Runner) -> None:
    found = run(
        """
        import pytest
        KEPT = {}

        @pytest.mark.parametrize("name", ["\\x1b[31mred\\x07", "a" * 5000])
        def test_it(name):
            KEPT[name, len(KEPT)] = Buffer(100)
        """
    )
    assert "\x1b[31m" not in found.result.stdout.str()
    assert len(json.dumps(found.report)) < 200_000
    assert found.report["summary"]["leaked"] == 2


def test_the_process_is_left_as_it_was(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import gc, subprocess, sys

        def test_it():
            code = (
                "import gc, pytest; before = (gc.collect, gc.get_objects, list(gc.callbacks));"
                "pytest.main(['--gpu-leak', '-p', 'no:cacheprovider', '-k', 'nothing', '-q']);"
                "assert (gc.collect, gc.get_objects, list(gc.callbacks)) == before; assert gc.get_freeze_count() < 5000"
            )
            subprocess.run([sys.executable, "-c", code], check=True)
        """
    )
    # pytest-randomly would import numpy, which pytester then drops, and which no process imports twice.
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly").assert_outcomes(passed=1)


def test_a_run_within_a_run(run: Runner, pytester: pytest.Pytester) -> None:
    """Plugin authors run pytest inside pytest: there is one border in a process, so the inner run scans."""
    inner = pytester.path / "inner"
    inner.mkdir()
    (inner / "conftest.py").write_text((pytester.path / "conftest.py").read_text())
    (inner / "test_inner.py").write_text(
        "from tests.support.standin import Buffer\nKEPT = []\n\n"
        "def test_inner_leak():\n    KEPT.append(Buffer(100))\n\n"
        "def test_inner_clean():\n    Buffer()\n"
    )
    found = run(
        f"""
        import json, pytest
        KEPT = []

        def test_outer():
            arguments = ["-p", "no:cacheprovider", "--gpu-leak", "--gpu-leak-report=inner.json", "--rootdir", "inner"]
            assert pytest.main([*arguments, {str(inner)!r}, "-q", "-p", "no:randomly"]) == 1
            verdicts = [test["verdict"] for test in json.load(open("inner.json"))["tests"]]
            assert verdicts == ["leaked", "clean"]

        def test_outer_leak():
            KEPT.append(Buffer(50))
        """,
        apart=True,
    )
    assert found.verdicts["test_outer_leak"] == "leaked"
    assert found.tests["test_outer"]["outcome"] == "passed"


OFF = ("hookspecs", "plugin", "session", "session.entry", "session.options")
"""The modules that are loaded where the plugin is installed and off, and no others."""


LATER = (
    "baseline",
    "cli",
    "engine.confirm",
    "engine.detect.helper_memory",
    "engine.late",
    "engine.settle.device_wait",
    "engine.suspect",
    "adapters.torch.peak_mode",
    "explain",
    "model.devices",
    "model.findings",
    "model.helpers",
    "model.peak_parts",
    "reports.html",
    "reports.json",
    "reports.terminal.devices",
    "reports.terminal.helpers",
    "session.features.device_gate",
    "session.publishing",
    "session.rerun",
)
"""What is loaded with the first suspect, to explain it and to report: not by a run without either."""


def loaded_modules(pytester: pytest.Pytester, *options: str) -> list[str]:
    """The modules of the package, and torch, that a run of one empty test loads."""
    code = (
        "import sys, pytest\n"
        f"assert pytest.main(['-p', 'no:cacheprovider', '-q', *{options!r}]) == 0\n"
        "print(*(name for name in sys.modules if name.startswith(('pytest_gpuleak', 'torch'))))\n"
    )
    pytester.makepyfile(test_it="def test_it():\n    pass\n")
    result = pytester.run(os.sys.executable, "-c", code)  # type: ignore[attr-defined]
    return sorted(name.removeprefix("pytest_gpuleak.") for name in result.outlines[-1].split())


@pytest.mark.parametrize("options", [(), ("--co",), ("--no-gpu-leak",)])
def test_installed_and_off_loads_exactly_these_modules(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    assert loaded_modules(pytester, *options) == sorted(["pytest_gpuleak", *OFF])


UNUSED = {"cupy": ("framework",), "mlx": ("framework",)}
"""The modules of an adapter folder that a run loads whose tests have not imported the framework."""


def test_a_clean_run_loads_nothing_of_what_suspects_reports_and_unused_frameworks_take(
    pytester: pytest.Pytester,
) -> None:
    loaded = loaded_modules(pytester, "--gpu-leak")
    assert "session.run" in loaded
    assert [name for name in loaded if name.startswith(("torch", *LATER))] == []
    for framework, unused in UNUSED.items():
        folder = f"adapters.{framework}"
        assert [name for name in loaded if name.startswith(folder)] == [
            folder,
            *(f"{folder}.{name}" for name in unused),
        ]


@pytest.mark.usefixtures("cold")
def test_torch_is_never_imported_by_the_plugin(run: Runner) -> None:
    found = run(
        """
        import sys

        def test_it():
            assert "torch" not in sys.modules

        def test_leaks(kept=[]):
            kept.append(Buffer(100))
            assert "torch" not in sys.modules
        """,
        "-s",
        apart=True,
    )
    found.result.assert_outcomes(passed=2)
    assert found.report["environment"]["torch"] is None


def test_the_schema_ships_with_the_package() -> None:
    import pytest_gpuleak

    folder = pathlib.Path(str(pytest_gpuleak.__file__)).parent
    assert (folder / "py.typed").exists()
    assert list((folder / "reports" / "schema").glob("*.json"))

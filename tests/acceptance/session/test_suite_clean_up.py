"""What the suite's own clean-up costs: counted by caller, told in one line, never changed."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pytest_gpuleak.cli import main
from pytest_gpuleak.cli.merge import merge_reports
from pytest_gpuleak.reports.json.read import read_report

if TYPE_CHECKING:
    from tests.conftest import Json, Run, Runner

TEAR_DOWN = "TestCase.tearDown()" if sys.version_info >= (3, 11) else "tearDown()"  # without `code.co_qualname`

CONFTEST = """

import gc
import helpers

@pytest.fixture(autouse=True)
def cleanup():
    yield
    helpers.flush()

@pytest.fixture(name="renamed")
def made_here():
    gc.collect()

def pytest_runtest_logfinish():
    gc.collect(2)
"""
HELPERS = """
from gc import collect

def flush():
    collect()
    collect(1)
"""
SUITE = """
    import gc
    import unittest
    import helpers

    def test_plain(): pass

    def test_renamed(renamed): pass

    def test_collects():
        assert gc.collect(generation=2) >= 0
        gc.collect(0)

    def test_calls_a_helper():
        helpers.flush()

    class TestCase(unittest.TestCase):
        def tearDown(self):
            gc.collect()

        def test_it(self): pass
"""


@pytest.fixture
def cleaning(run: Runner, pytester: pytest.Pytester) -> Runner:
    """Runs a suite beside a conftest.py with fixtures and a hook that collect."""
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + CONFTEST)
    (pytester.path / "helpers.py").write_text(HELPERS)
    return run


def calls(found: Run) -> dict[str, int]:
    return {f"{one['what']} {one['by']}": one["count"] for one in found.report["summary"]["cleanup"]}


def lines_on(found: Run) -> list[str]:
    return [line for line in found.result.outlines if "--gpu-leak finds the tests" in line]


def test_full_collections_are_counted_by_fixture_and_function_and_top_lists_them(cleaning: Runner) -> None:
    found = cleaning(SUITE, "--gpu-leak-top=3")
    found.result.assert_outcomes(passed=5)
    assert calls(found) == {
        "gc.collect fixture 'cleanup'": 5,
        "gc.collect fixture 'renamed'": 1,
        "gc.collect pytest_runtest_logfinish()": 5,
        "gc.collect test_collects()": 1,
        "gc.collect flush()": 1,
        f"gc.collect {TEAR_DOWN}": 1,
    }
    by_caller: dict[str, Json] = {one["by"]: one for one in found.report["summary"]["cleanup"]}
    assert by_caller["fixture 'cleanup'"]["file"] == "conftest.py"
    assert by_caller[TEAR_DOWN]["file"] == "test_it.py"
    assert by_caller["flush()"] == {**by_caller["flush()"], "file": "helpers.py", "line": 4}
    assert 0 < sum(one["seconds"] for one in by_caller.values()) < found.report["summary"]["run_s"]
    lines = found.result.outlines
    at = next(
        index for index, line in enumerate(lines) if line.startswith("gpu-leak: what the suite's own clean-up took")
    )
    assert all(" s  gc.collect, " in line for line in lines[at + 1 : at + 4])
    assert " s  gc.collect, " not in lines[at + 4]


def test_one_line_tells_who_and_how_much_and_reports_are_read_shown_and_merged(
    cleaning: Runner, pytester: pytest.Pytester
) -> None:
    # Nothing but collections: more than a twentieth of any run.
    found = cleaning("def test_other(): [__import__('gc').collect() for _ in range(20)]")
    (line,) = lines_on(found)
    assert line.startswith("gpu-leak: test_other() (test_it.py:2) collects the heap 20 times: ")
    assert " s of " in line
    assert ", 2 others " in line
    assert found.result.ret == 0

    path = pytester.path / "report.json"
    shown: Any = CliRunner().invoke(main, ["show", str(path)])
    assert [one for one in shown.output.splitlines() if "--gpu-leak finds the tests" in one] == [line]
    report = read_report(path)
    merged = merge_reports([report, report]).summary
    assert {one["by"]: one["count"] for one in merged["cleanup"]}["test_other()"] == 40
    assert merged["run_s"] == 2 * report.summary["run_s"]


@pytest.mark.usefixtures("cold")
def test_where_nothing_cleans_up_nothing_is_loaded_and_told(run: Runner) -> None:
    found = run(
        """
        import sys

        def test_it():
            assert not [name for name in sys.modules if name.startswith("pytest_gpuleak") and "suite_clean_up" in name]
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=1)
    assert "cleanup" not in found.report["summary"]
    assert lines_on(found) == []


def test_automatic_collections_and_the_plugins_own_are_not_counted(run: Runner, pytester: pytest.Pytester) -> None:
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + "\nimport gc\ndef pytest_gpuleak_settle():\n    gc.collect()\n")
    found = run(
        """
        import gc

        def test_leaks(kept=[]):
            kept.append(Buffer(100))

        def test_leaks_and_collects(kept=[]):
            kept.append(Buffer(100))
            gc.collect()

        def test_causes_automatic_ones():
            before = gc.get_threshold()
            gc.set_threshold(1, 1, 1)
            [[] for _ in range(100)]
            gc.set_threshold(*before)
        """
    )
    assert found.verdicts["test_leaks"] == found.verdicts["test_leaks_and_collects"] == "leaked"
    assert calls(found) == {"gc.collect test_leaks_and_collects()": 1}  # its re-runs are the plugin's


def test_collect_returns_raises_and_looks_as_without_the_plugin_and_keeps_no_caller(run: Runner) -> None:
    found = run(
        """
        import gc
        import pickle
        import weakref
        import pytest

        MET = []

        class Ring:
            pass

        def make():
            ring = Ring()
            ring.itself = ring

        def test_it():
            gc.collect()
            make()
            assert gc.collect() > 0
            assert gc.collect(generation=2) == 0
            for wrong, error in ((3, ValueError), ("2", TypeError), (-1, ValueError)):
                with pytest.raises(error):
                    gc.collect(wrong)
            with pytest.raises(TypeError):
                gc.collect(2, 2)
            assert pickle.loads(pickle.dumps(gc.collect)) is gc.collect

        def test_collects():
            buffer = Buffer(2**21)
            MET.append(weakref.ref(buffer.memory))
            gc.collect()

        def test_it_is_gone():
            assert MET[0]() is None
        """
    )
    found.result.assert_outcomes(passed=3)
    assert set(found.verdicts.values()) == {"clean"}
    assert gc.collect.__module__ == "gc"


def test_without_a_file_system_the_call_goes_on(run: Runner) -> None:
    found = run(
        """
        import gc
        import sys

        def test_it(monkeypatch):
            for name in [name for name in sys.modules if "clean_up" in name and name.startswith("pytest_gpuleak")]:
                monkeypatch.delitem(sys.modules, name)
            monkeypatch.setattr(sys, "meta_path", [])
            assert gc.collect() >= 0
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=1)


def test_a_scan_leaves_collect_as_it_is(cleaning: Runner) -> None:
    assert "cleanup" not in cleaning(SUITE, "--gpu-leak-scan=scan").report["summary"]


def test_workers_are_added_up(cleaning: Runner) -> None:
    pytest.importorskip("xdist")
    found = cleaning(SUITE, "-p", "xdist", "-n2", apart=True)
    assert calls(found)["gc.collect fixture 'cleanup'"] == 5
    assert len(lines_on(found)) <= 1
    assert found.report["summary"]["run_s"] > 0


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_emptied_caches_are_counted_once_a_device_is_in_use(run: Runner) -> None:
    pytest.importorskip("torch")
    found = run(
        """
        import pytest
        import torch
        from tests.support import simgpu
        simgpu.install()

        @pytest.fixture(autouse=True)
        def cleanup():
            yield
            torch.simgpu.empty_cache()

        def test_uses_it(): torch.ones(4, device="simgpu:0")

        def test_cached(): assert torch.simgpu.memory_reserved(0) == 0

        def test_fails(): assert not torch.ones(4, device="simgpu:0").numel()
        """,
        "--gpu-leak-clean",
        apart=True,
    )
    assert calls(found) == {"empty_cache fixture 'cleanup'": 2}

"""What a re-run does is not seen by plugins that record runs, and a leak is counted once where tests are repeated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner


LEAK = """
    KEPT = []

    def leak():
        KEPT.append(Buffer(100))
"""


def leaked_line(found: Run) -> str:
    """What pytest's last line says of leaks."""
    return next(part for part in found.result.stdout.lines[-1].split(", ") if "leaked" in part).split(" in ")[0]


def test_benchmarks_have_one_row(run: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_benchmark")
    found = run(
        LEAK
        + """
    def test_it(benchmark):
        benchmark.pedantic(leak, rounds=3)
        """,
        "-p",
        "pytest_benchmark.plugin",
        "--benchmark-json=rows.json",
        apart=True,
    )
    assert found.finding("test_it")["bytes_per_run"] == 300
    rows = json.loads((pytester.path / "rows.json").read_text())["benchmarks"]
    assert [(row["name"], row["stats"]["rounds"]) for row in rows] == [("test_it", 3)]


def test_pyfakefs_leaves_the_plugin_s_modules_out(run: Runner, pytester: pytest.Pytester) -> None:
    package = pytester.mkpydir("pyfakefs")
    (package / "fake_filesystem_unittest.py").write_text(
        "class Patcher:\n    RUNTIME_SKIPMODULES = {'pydevd': ['_pydevd_']}\n"
    )
    found = run(
        """
        from pyfakefs.fake_filesystem_unittest import Patcher

        def test_it():
            assert Patcher.RUNTIME_SKIPMODULES == {"pydevd": ["_pydevd_"], "pytest_gpuleak": ["pytest_gpuleak"]}
        """,
        apart=True,
    )
    assert found.verdicts == {"test_it": "clean"}


def test_coverage_counts_no_line_of_the_re_run(run: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_cov")
    pytester.makepyfile(
        measured="""
        def once(again):
            if again:
                return "second"
            return "first"

        def after():
            return 1
        """
    )
    found = run(
        LEAK
        + """
    import measured

    def test_it():
        measured.once(len(KEPT) > 0)
        leak()

    def test_next():
        measured.after()
        """,
        *("-p", "pytest_cov.plugin", "--cov=measured", "--cov-context=test", "--cov-report=json:lines.json"),
        apart=True,
    )
    assert found.finding("test_it")["kind"] == "growing"
    file: dict[str, Any] = json.loads((pytester.path / "lines.json").read_text())["files"]["measured.py"]
    assert file["missing_lines"] == [3]
    assert 7 in file["executed_lines"]


def test_a_snapshot_is_used_and_updated_once(run: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("syrupy")
    source = (
        LEAK
        + """
    def test_it(snapshot):
        leak()
        assert snapshot == len(KEPT)

    def test_same(snapshot):
        leak()
        assert snapshot == "same"
        """
    )
    options = ("-p", "syrupy", "--snapshot-update")
    found = run(source, *options, apart=True)
    assert "2 snapshots generated." in found.result.stdout.str()
    assert found.finding("test_same")["kind"] == "growing"
    (file,) = pytester.path.glob("__snapshots__/*.ambr")
    assert file.read_text().split("# name: test_it\n")[1].split()[0] == "1"


def test_hypothesis_keeps_no_example_of_a_re_run(run: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("hypothesis")
    found = run(
        LEAK
        + """
    import time
    from hypothesis import given, settings, strategies as st

    CALLS = []

    @settings(max_examples=5, deadline=500)
    @given(st.integers())
    def test_fails_again(number):
        CALLS.append(1)
        KEPT.append(Buffer(2**20))
        assert len(CALLS) <= 5

    class TestMethod:
        @settings(max_examples=5)
        @given(st.integers())
        def test_it(self, number):
            leak()
        """,
        # The `run` fixture keeps this plugin out by its name.
        *("-p", "_hypothesis_pytestplugin", "--hypothesis-show-statistics"),
        apart=True,
    )
    assert found.finding("test_fails_again")["kind"] == "unconfirmed"
    assert found.finding("TestMethod::test_it")["kind"] == "growing"
    examples = pytester.path / ".hypothesis" / "examples"
    assert not [path for path in examples.rglob("*") if path.is_file()]
    assert "1 failing" not in found.result.stdout.str()


REPEATED = """
    KEPT, RUNS, CACHE = [], [], {}

    def test_growing():
        KEPT.append(Buffer(100))

    def test_retained():
        CACHE.setdefault("x", Buffer(2**21))

    def test_fails_first():
        RUNS.append(1)
        KEPT.append(Buffer(100))
        assert len(RUNS) > 1

    def test_clean():
        pass
"""


FAILING = """
    import pytest

    def test_fails():
        assert False

    @pytest.fixture
    def broken():
        yield
        raise RuntimeError("teardown")

    def test_errs(broken):
        pass

    def test_skipped():
        pytest.skip("no")
"""


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n1")])
def test_rerunfailures_repeats_no_leak_and_what_fails_in_each_attempt_is_unchecked_once(
    run: Runner, workers: tuple[str, ...]
) -> None:
    pytest.importorskip("pytest_rerunfailures")
    found = run(REPEATED + FAILING, "-p", "rerunfailures", "--reruns=2", *workers, apart=True)
    assert leaked_line(found) == "3 leaked"
    found.result.stdout.fnmatch_lines(["gpu-leak: 3 leaked, 3 unchecked, 1 clean, 5 rerun; *"])
    assert counted(found) == {"tests": 7, "leaked": 3, "clean": 1, "unchecked": 3, "rerun": 5}
    outcomes = {name: count for name, count in found.result.parseoutcomes().items() if name != "passed"}
    assert outcomes == {"failed": 1, "errors": 1, "skipped": 1, "rerun": 5, "leaked": 3}
    attempts = [test for test in found.report["tests"] if "fails_first" in test["nodeid"]]
    assert [test["verdict"] for test in attempts] == ["unchecked", "leaked"]
    assert [test["outcome"] for test in attempts if test["rerun"]] == ["failed"]
    assert found.verdicts["test_clean"] == "clean"
    assert found.result.ret == 1


def test_a_re_run_that_fails_leaves_rerunfailures_as_it_was(run: Runner) -> None:
    pytest.importorskip("pytest_rerunfailures")
    found = run(
        """
        import pytest
        KEPT, BUILT = [], []

        @pytest.fixture(scope="module")
        def shared():
            BUILT.append("up")
            yield
            BUILT.append("down")

        def test_it(shared):
            assert not KEPT
            KEPT.append(Buffer(2**21))

        def test_next(shared):
            assert BUILT == ["up"]
        """,
        "-p",
        "rerunfailures",
        "--reruns=2",
        apart=True,
    )
    assert found.verdicts == {"test_it": "leaked", "test_next": "clean"}
    assert "rerun" not in found.result.stdout.lines[-1]


def counted(found: Run) -> dict[str, int]:
    """Return the counts of a run's summary that pytest has too."""
    return {name: found.report["summary"][name] for name in ("tests", "leaked", "clean", "unchecked", "rerun")}


def test_flaky_logs_a_leak_once(run: Runner) -> None:
    pytest.importorskip("flaky")
    source = REPEATED.replace("    def test_", "    @flaky(max_runs=4, min_passes=2)\n    def test_")
    found = run("    from flaky import flaky\n" + source, "-p", "flaky.flaky_pytest_plugin", apart=True)
    assert leaked_line(found) == "3 leaked"
    # No tests of their own: the first pass of the clean test, the failed attempt, and the attempt that finds the cache full.
    assert counted(found) == {"tests": 4, "leaked": 3, "clean": 1, "unchecked": 0, "rerun": 3}
    assert [test["nodeid"] for test in found.report["tests"] if test["verdict"] == "leaked"] == [
        f"test_it.py::test_{name}" for name in ("growing", "retained", "fails_first")
    ]


def test_a_runner_that_repeats_failed_tests_sees_no_failure(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        repeating="""
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item, nextitem):
            for left in (2, 1, 0):
                item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
                reports = runtestprotocol(item, nextitem=nextitem, log=False)
                if left == 0 or not any(report.failed for report in reports):
                    break
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
            return True
        """
    )
    found = run(REPEATED, "-p", "repeating", "-x", apart=True)
    assert leaked_line(found) == "1 leaked"
    assert found.result.ret == 1
    found = run(REPEATED, "-p", "repeating", apart=True)
    assert leaked_line(found) == "3 leaked"
    assert found.report["summary"]["leaked"] == 3


def test_a_recording_plugin_of_another_version_costs_the_re_run(run: Runner) -> None:
    found = run(
        """
        import sys, types
        KEPT = []
        sys.modules["syrupy.session"] = types.ModuleType("syrupy.session")

        def test_it(pytestconfig):
            pytestconfig._syrupy = object()
            KEPT.append(Buffer(2**21))
        """,
        apart=True,
    )
    assert found.finding("test_it")["kind"] == "unconfirmed"
    assert "cannot be hidden from syrupy" in found.finding("test_it")["why_unconfirmed"]


@pytest.mark.parametrize(("mode", "kind"), [("new_episodes", "unconfirmed"), ("none", "growing")])
def test_a_cassette_gets_no_requests_of_a_re_run(run: Runner, pytester: pytest.Pytester, mode: str, kind: str) -> None:
    # The options of pytest-recording, and the module of vcrpy: nothing is requested.
    pytester.makepyfile(
        recording="""
        import sys, types
        sys.modules["vcr"] = types.ModuleType("vcr")

        def pytest_addoption(parser):
            parser.addoption("--record-mode", default=None)

        def pytest_configure(config):
            config.addinivalue_line("markers", "vcr: records requests")
        """
    )
    found = run(
        LEAK
        + """
    import pytest

    @pytest.mark.vcr
    def test_it():
        leak()

    def test_plain():
        leak()
        """,
        *("-p", "recording", f"--record-mode={mode}"),
        apart=True,
    )
    assert found.finding("test_it")["kind"] == kind
    assert found.finding("test_plain")["kind"] == "growing"
    if kind == "unconfirmed":
        assert "pytest-recording" in found.finding("test_it")["why_unconfirmed"]

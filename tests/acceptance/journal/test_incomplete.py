"""Runs that stop early: what the report and the terminal say, and what stands there while the run goes on."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.reports.json.journal import NOT_ENDED
from tests.support.schema import check_schema

if TYPE_CHECKING:
    from tests.conftest import Runner

STOPS = {
    "assert False": (["-x"], "stopping after 1 failures"),
    "raise KeyboardInterrupt": ([], "interrupted (KeyboardInterrupt)"),
    "pytest.exit('enough\\x1b[31m')": ([], r"pytest.exit: enough\x1b[31m"),
    "request.session.shouldstop = 'no time left'": ([], "no time left"),
}


@pytest.mark.parametrize("stop", STOPS)
def test_a_run_that_is_stopped_says_why_and_what_is_missing(run: Runner, stop: str) -> None:
    options, why = STOPS[stop]
    found = run(
        f"""
        import pytest

        def test_first():
            pass

        def test_stops(request):
            {stop}

        def test_last():
            pass
        """,
        *options,
        apart="Interrupt" in stop,  # pytester would take it for the user's
    )
    missing = 2 if "raise" in stop or "exit" in stop else 1
    assert found.report["incomplete"] == f"{why}; {missing} of 3 tests did not run to the end"
    assert found.verdicts["test_first"] == "clean"
    assert found.report["summary"]["tests"] == 3 - missing
    check_schema(found.report)
    assert f"gpu-leak: THE REPORT IS INCOMPLETE: {found.report['incomplete']}" in found.result.stdout.str()


def test_stopped_after_the_last_test_it_is_complete(run: Runner) -> None:
    found = run("def test_it():\n    assert False\n", "-x")
    assert found.report["incomplete"] is None
    assert "INCOMPLETE" not in found.result.stdout.str()


def test_an_internal_error(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.syspathinsert()
    pytester.makepyfile(
        breaks="""
        def pytest_runtest_logreport(report):
            if report.when == "call" and "second" in report.nodeid:
                raise RuntimeError("a plugin broke")
        """
    )
    found = run("def test_first(): pass\ndef test_second(): pass\n", "-p", "breaks")
    assert found.report["incomplete"].startswith("internal error: ")
    assert found.report["incomplete"].endswith("RuntimeError: a plugin broke; 1 of 2 tests did not run to the end")
    assert found.verdicts == {"test_first": "clean"}


@pytest.mark.parametrize("options", [[], ["--continue-on-collection-errors"]])
def test_a_file_that_cannot_be_collected_is_missing(run: Runner, pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.makepyfile(test_bad="import no_such_module")
    found = run("def test_it(): pass", *options)
    assert "1 error during collection" in found.report["incomplete"]
    assert list(found.verdicts) == (["test_it"] if options else [])


def test_deselected_tests_are_counted_and_not_missing(run: Runner) -> None:
    found = run("def test_one(): pass\ndef test_two(): pass\ndef test_three(): pass\n", "-k", "one")
    assert (found.report["summary"]["deselected"], found.report["incomplete"]) == (2, None)


def test_while_the_run_goes_on_its_report_can_be_read(run: Runner, pytester: pytest.Pytester) -> None:
    (pytester.path / "report.json").write_text("of an older run")
    found = run(
        """
        import json, pathlib, pytest
        KEPT = []

        @pytest.fixture(scope="class")
        def model():
            KEPT.append(Buffer(2**21))

        class TestFirst:
            def test_leaks(self, model):
                KEPT.append(Buffer(100))

        def test_between():
            pass

        def test_reads():
            pathlib.Path("seen.json").write_bytes(pathlib.Path("report.json").read_bytes())
        """
    )
    seen = json.loads((pytester.path / "seen.json").read_bytes())
    check_schema(seen)
    assert seen["incomplete"] == NOT_ENDED
    assert seen["summary"]["running"] == ["test_it.py::test_reads"]
    # A search for the holders of many comes later: until then a finding is provisional. All else stands.
    assert [one.pop("provisional") for test in seen["tests"] for one in test["findings"]] == [True]
    assert [one.pop("provisional") for test in found.report["tests"] for one in test["findings"]] == [False]
    before, after = seen["tests"][0]["suspect_s"], found.report["tests"][0]["suspect_s"]
    after["check"], search_s = before["check"], after.pop("search")
    assert search_s > 0
    assert seen["tests"] == found.report["tests"][:2]
    assert [fixture["name"] for fixture in seen["fixtures"]] == ["model"]
    assert found.report["incomplete"] is None
    assert len(found.tests) == 3


@pytest.mark.parametrize("stop", ["pass", "shutil.rmtree('reports')"])
def test_without_a_json_report_a_partial_one_stands_there_until_the_end(pytester: pytest.Pytester, stop: str) -> None:
    reports = pytester.mkdir("reports")
    source = f"""
        import json, pathlib, shutil

        def test_first():
            pass

        def test_reads():
            found = json.loads(pathlib.Path("reports/r.md.partial.json").read_bytes())
            assert len(found["tests"]) == 1
            {stop}
        """
    pytester.makepyfile(test_it=source)
    result = pytester.runpytest_inprocess("--gpu-leak", "-p", "no:randomly", f"--gpu-leak-report={reports / 'r.md'}")
    result.assert_outcomes(passed=2)
    assert (reports / "r.md").exists() == (stop == "pass")
    assert not (reports / "r.md.partial.json").exists()
    assert "INTERNALERROR" not in result.stdout.str()


@pytest.mark.parametrize("option", ["--collect-only", "--gpu-leak-mb=x", "-kno_such_test"])
def test_where_no_test_starts_an_older_report_is_not_begun_anew(
    run: Runner, pytester: pytest.Pytester, option: str
) -> None:
    path = pytester.path / "report.json"
    path.write_text('"older"')
    run("def test_it(): pass", option)
    text = path.read_text()
    assert NOT_ENDED not in text
    assert (text == '"older"') == (option != "-kno_such_test")


def test_a_journal_that_breaks_off_is_one_line_and_no_more(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_up(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pytest_gpuleak.reports.json.journal._write_at", fill_up)
    found = run("def test_one(): pass\ndef test_two(): pass\n")
    assert found.result.stdout.str().count("broke off: No space left on device") == 1
    assert (found.result.ret, list(found.verdicts)) == (0, ["test_one", "test_two"])


FORKS = """
    import os, pickle
    import pytest
    from _pytest import runner

    def in_a_process_of_its_own(config, item, nextitem):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            reports = runner.runtestprotocol(item, log=False, nextitem=nextitem)
            to = config.hook.pytest_report_to_serializable
            with os.fdopen(writing, "wb") as stream:
                pickle.dump([to(config=config, report=report) for report in reports], stream)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            data = stream.read()
        os.waitpid(child, 0)
        if not data:
            location = item.location
            return [pytest.TestReport(item.nodeid, location, {}, "failed", "CRASHED with signal 9", "???")]
        back = config.hook.pytest_report_from_serializable
        return [back(config=config, data=one) for one in pickle.loads(data)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(item, nextitem):
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in in_a_process_of_its_own(item.config, item, nextitem):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_tests(run: Runner, pytester: pytest.Pytester) -> None:
    """As pytest-forked does it: the reports come back serialised, and a test whose process dies has one made up."""
    pytester.syspathinsert()
    pytester.makepyfile(forks=FORKS)
    found = run(
        """
        import os, signal
        KEPT = []

        def test_leaks():
            KEPT.append(Buffer(100))

        def test_dies():
            os.kill(os.getpid(), signal.SIGKILL)

        def test_clean():
            pass
        """,
        "-p",
        "forks",
    )
    assert found.verdicts == {"test_leaks": "leaked", "test_dies": "unchecked", "test_clean": "clean"}
    assert found.holder("test_leaks") == "test_it.KEPT[0]"
    dead = found.tests["test_dies"]
    assert (dead["outcome"], dead["why_unchecked"]) == ("failed", "its process died while running it")
    assert (dead["file"], dead["line"]) == ("test_it.py", 9)
    assert found.report["incomplete"] is None


def test_a_test_that_a_plugin_runs_elsewhere_is_unchecked_and_not_lost(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.syspathinsert()
    pytester.makepyfile(
        elsewhere="""
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for when, outcome in ("setup", "passed"), ("call", "failed"), ("teardown", "passed"):
                report = pytest.TestReport(item.nodeid, item.location, {}, outcome, "elsewhere", when)
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
        """
    )
    found = run("def test_it(): pass", "-p", "elsewhere")
    test = found.tests["test_it"]
    assert (test["verdict"], test["outcome"]) == ("unchecked", "failed")
    assert "a plugin runs it in a way of its own" in test["why_unchecked"]
    assert found.report["incomplete"] is None


def test_a_test_with_one_report_alone_is_unchecked_and_not_lost(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.syspathinsert()
    pytester.makepyfile(
        brief="""
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            if item.name == "test_brief":
                report = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "call")
                item.ihook.pytest_runtest_logreport(report=report)
                return True
        """
    )
    found = run("def test_first(): pass\ndef test_brief(): pass\ndef test_last(): pass", "-p", "brief")
    assert found.verdicts == {"test_first": "clean", "test_brief": "unchecked", "test_last": "clean"}
    assert found.report["incomplete"] is None


LATE = """
    import copy
    import pytest

    LAST = []

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(report):
        LAST[:] = [report]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item, nextitem):
        done = yield
        report = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "call")
        for late in (copy.copy(LAST[0]), report):
            item.ihook.pytest_runtest_logreport(report=late)
        return done
"""


@pytest.mark.parametrize("report", [True, False])
def test_a_report_after_the_teardown_makes_no_second_test(
    run: Runner, pytester: pytest.Pytester, *, report: bool
) -> None:
    pytester.makeconftest(LATE)
    found = run("def test_first(): pass\ndef test_last(): pass", report=report)
    found.result.stdout.fnmatch_lines(["gpu-leak: 0 leaked, 2 clean*"])
    if report:
        assert found.verdicts == {"test_first": "clean", "test_last": "clean"}
        assert found.report["summary"]["tests"] == 2


def test_without_a_terminal_a_test_that_is_interrupted_is_missing_too(run: Runner) -> None:
    found = run(
        """
        import pytest

        def test_first(): pass

        def test_stops():
            pytest.exit("enough")

        def test_last(): pass
        """,
        *("-p", "no:terminal"),
    )
    assert found.verdicts == {"test_first": "clean"}
    assert "2 of 3 tests did not run to the end" in found.report["incomplete"]


def test_each_rank_writes_reports_of_its_own(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    found = run(
        """
        import json, pathlib

        def test_first():
            pass

        def test_reads():
            assert len(json.loads(pathlib.Path("report.rank2.json").read_bytes())["tests"]) == 1
        """,
        "--gpu-leak-report=r.md",
    )
    assert found.report == {}
    document = json.loads((pytester.path / "report.rank2.json").read_bytes())
    assert [test["worker"] for test in document["tests"]] == ["rank2", "rank2"]
    assert (pytester.path / "r.rank2.md").exists()
    found.result.stdout.fnmatch_lines(
        ["gpu-leak: rank 2 of 4 writes reports of its own: report.rank2.json, r.rank2.md"]
    )
    assert found.result.ret == 0

"""`--gpu-leak-warn`: all is found, shown and reported, and nothing fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.cli.merge import merge_reports
from pytest_gpuleak.reports.json.read import read_report

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

SUITE = """
    import pytest
    KEPT, CACHE = [], {}

    @pytest.fixture(scope="module")
    def model():
        KEPT.append(Buffer(2**21))

    @pytest.mark.parametrize("size", range(1, 10))
    def test_leaks(size):
        KEPT.append(Buffer(size))

    def test_keeps(model):
        CACHE["it"] = Buffer(2**21)

    def test_clean():
        pass
"""
FAILS = """
    def test_leaks(kept=[]):
        kept.append(Buffer(100))

    def test_fails():
        assert False
"""


def junit(pytester: pytest.Pytester) -> str:
    """The JUnit file without times and the machine's name."""
    return re.sub(r'(time|timestamp|hostname)="[^"]*"', "", (pytester.path / "junit.xml").read_text())


def letters(found: Run) -> str:
    (line,) = (line for line in found.result.outlines if line.startswith("test_it.py "))
    return line.split()[1]


@pytest.mark.parametrize("suite", [SUITE, FAILS])
def test_outcomes_exit_status_and_junit_are_as_without_the_plugin(
    run: Runner, pytester: pytest.Pytester, suite: str
) -> None:
    plain = run(suite, "--junitxml=junit.xml", plugin="--no-gpu-leak", report=False)
    before = junit(pytester)
    found = run(suite, "--junitxml=junit.xml", "--gpu-leak-warn")
    assert found.result.ret == plain.result.ret
    assert found.result.parseoutcomes() == plain.result.parseoutcomes()
    assert letters(found) == letters(plain)
    assert junit(pytester) == before


def test_all_is_shown_reported_annotated_and_merged(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    found = run(SUITE, "--gpu-leak-warn")
    assert found.report["summary"]["would_fail"] == found.report["summary"]["leaked"] == 10
    assert found.report["summary"]["fixtures_leaked"] == 1
    assert all(one["failed"] for name, test in found.tests.items() if "clean" not in name for one in test["findings"])
    found.result.stdout.fnmatch_lines(
        [
            "gpu-leak: epoch; warns of any growth, warns of 1.0 MiB or more left behind; *",
            "*= GPU LEAKS =*",
            "gpu-leak: 10 leaked, 1 fixture leaked ('model'), 1 clean, 10 tests would fail without --gpu-leak-warn; *",
            "LEAKED test_it.py::test_keeps - *",
        ]
    )
    assert any(line.startswith("::warning file=test_it.py,") for line in found.result.outlines)
    assert not any(line.startswith("::error") for line in found.result.outlines)
    assert merge_reports([read_report(pytester.path / "report.json")]).summary["would_fail"] == 10


def test_without_it_the_report_does_not_say_what_would_fail(run: Runner) -> None:
    found = run(FAILS)
    assert "would_fail" not in found.report["summary"]
    assert found.result.ret == 1


@pytest.mark.parametrize("option", ["--gpu-leak-strict", "--gpu-leak-fail-stale"])
def test_options_that_fail_the_run_have_no_effect_and_that_is_said(
    run: Runner, pytester: pytest.Pytester, option: str
) -> None:
    conftest = pytester.path / "conftest.py"
    hook = "\ndef pytest_gpuleak_settle():\n    raise ValueError('no way')\n"
    baseline = "--gpu-leak-baseline=known.toml"
    run("def test_leaks(kept=[]): kept.append(Buffer(100))", baseline, "--gpu-leak-update-baseline")
    if option == "--gpu-leak-strict":
        conftest.write_text(conftest.read_text() + hook)
        suite = "def test_leaks(kept=[]): kept.append(Buffer(100))"
    else:
        suite = "def test_leaks(): pass"
    assert run(suite, option, baseline).result.ret == 1
    found = run(suite, option, baseline, "--gpu-leak-warn")
    assert found.result.ret == 0
    found.result.stdout.fnmatch_lines([f"gpu-leak: --gpu-leak-warn fails nothing, so {option} has no effect"])


def test_leaks_that_a_baseline_lists_would_not_fail(run: Runner) -> None:
    run(SUITE, "--gpu-leak-baseline=known.toml", "--gpu-leak-update-baseline")
    found = run(SUITE.replace("def test_clean", "def test_new(): KEPT.append(Buffer(9))\n\n    def test_clean"),
                "--gpu-leak-baseline=known.toml", "--gpu-leak-warn")  # fmt: skip
    assert found.result.ret == 0
    assert found.report["summary"]["would_fail"] == 1


def test_it_is_read_from_the_ini(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpu_leak_warn = true\n")
    assert run(FAILS, "-k", "leaks").result.ret == 0


def test_an_option_that_is_off_has_no_line(run: Runner, pytester: pytest.Pytester) -> None:
    (pytester.path / "pytest.ini").write_text("[pytest]\ngpu_leak_warn = true\ngpu_leak_strict = false\n")
    assert not [line for line in run(FAILS).result.outlines if "has no effect" in line]


def test_an_option_in_the_ini_is_named_with_its_file(run: Runner, pytester: pytest.Pytester) -> None:
    (pytester.path / "pytest.ini").write_text("[pytest]\ngpu_leak_warn = true\ngpu_leak_strict = true\n")
    run(FAILS).result.stdout.fnmatch_lines(
        ["gpu-leak: --gpu-leak-warn fails nothing, so ini value gpu_leak_strict in *pytest.ini has no effect"]
    )


def test_under_xdist(run: Runner) -> None:
    pytest.importorskip("xdist")
    found = run(SUITE, "--gpu-leak-warn", "-p", "xdist", "-n1", apart=True)
    assert found.result.ret == 0
    found.result.assert_outcomes(passed=11)
    assert found.report["summary"]["would_fail"] == 10

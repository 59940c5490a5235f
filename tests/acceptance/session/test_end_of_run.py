"""What goes wrong at the end of a run costs its own part: the other reports, the summary and the exit status stand."""

from __future__ import annotations

import importlib
import json
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

SUITE = """
    import pytest
    KEPT = []

    @pytest.fixture(scope="module")
    def model():
        return KEPT

    def test_leaks(model):
        KEPT.append(Buffer(100))

    def test_clean():
        pass
"""
CLEAN = "def test_clean():\n    pass\n"


STEPS = [
    ("session.leak_check", "LeakCheck.finish", "judging what was left at the end"),
    ("session.records.recorder", "Recorder.finish", "recording the last tests"),
    ("session.records.run_records", "RunProgress.why_incomplete", "telling whether the run is complete"),
    ("session.publishing", "locate", "finding the repository"),
    ("reports.terminal.section", "render_leaks", "showing the leaks"),
    ("reports.terminal.summary", "render_usage", "showing the heaviest tests"),
    ("session.showing", "_show_findings", "showing the leaks"),
    ("reports.terminal.closing", "render_summary", "counting the tests"),
    ("session.records.recorder", "Recorder.close_journal", "writing the reports"),
]
FAULT = KeyError("a fault of ours")


def spoil(monkeypatch: pytest.MonkeyPatch, module: str, name: str, error: BaseException = FAULT) -> None:
    """Let a function or method of ours fail."""

    def fail(*_: object, **__: object) -> Any:
        raise type(error)(*error.args)  # a new one each time: it keeps the frames that it passes

    # By import: what an earlier run has loaded is forgotten after it, and stays an attribute of its package.
    owner: Any = importlib.import_module(f"pytest_gpuleak.{module}")
    *classes, function = name.split(".")
    for one in classes:
        owner = getattr(owner, one)
    monkeypatch.setattr(owner, function, fail)


def test_of_three_reports_of_which_one_fails_two_are_written(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "reports.html.page", "encode_report")
    found = run(SUITE, "--gpu-leak-report=broken.html", "--gpu-leak-report=other.sarif")
    assert found.result.ret == 1
    found.result.stdout.fnmatch_lines(
        ["LEAKED *::test_leaks", "gpu-leak: the report *broken.html could not be written: KeyError: 'a fault of ours'"]
    )
    assert found.verdicts == {"test_leaks": "leaked", "test_clean": "clean"}
    assert len(json.loads((pytester.path / "other.sarif").read_text())["runs"][0]["results"]) == 1
    assert not (pytester.path / "broken.html").exists()
    assert not list(pytester.path.glob(".gpuleak-*"))


def test_a_report_that_fails_fails_a_run_that_was_clean(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "reports.html.page", "encode_report")
    assert run(CLEAN, "--gpu-leak-report=broken.html").result.ret == 1


@pytest.mark.parametrize(
    ("suite", "module", "name", "said"),
    [*((SUITE, *step) for step in STEPS), *((CLEAN, *STEPS[number]) for number in (0, 1, -1))],
)
def test_a_step_that_fails_takes_one_line(
    run: Runner, monkeypatch: pytest.MonkeyPatch, suite: str, module: str, name: str, said: str
) -> None:
    spoil(monkeypatch, module, name)
    found = run(suite)
    text = found.result.stdout.str() + found.result.stderr.str()
    assert "INTERNALERROR" not in text
    assert "Traceback" not in text
    shown = f"gpu-leak: {said} failed: KeyError: 'a fault of ours'"
    assert found.result.outlines.count(shown) == 1
    assert found.result.ret == (1 if suite is SUITE else 0)
    found.result.assert_outcomes(passed=2 if suite is SUITE else 1)
    if "writing" not in said:
        assert found.verdicts["test_clean"] == "clean"
    if "counting" not in said:
        assert "1 clean" in "".join(line for line in found.result.outlines if line.startswith("gpu-leak: "))


@pytest.mark.parametrize(("module", "name", "said"), [STEPS[0], STEPS[4], STEPS[-1]])
def test_ctrl_c_skips_a_step(run: Runner, monkeypatch: pytest.MonkeyPatch, module: str, name: str, said: str) -> None:
    spoil(monkeypatch, module, name, KeyboardInterrupt())
    found = run(SUITE)
    assert found.result.outlines.count(f"gpu-leak: {said} failed: interrupted by Ctrl-C") == 1
    assert found.result.ret == pytest.ExitCode.INTERRUPTED
    found.result.assert_outcomes(passed=2)  # pytest's own summary
    if "writing" not in said:
        assert found.verdicts == {"test_leaks": "leaked", "test_clean": "clean"}


def test_ctrl_c_costs_one_report(run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "reports.html.page", "encode_report", KeyboardInterrupt())
    found = run(CLEAN, "--gpu-leak-report=broken.html", "--gpu-leak-report=other.sarif")
    assert found.result.ret == pytest.ExitCode.INTERRUPTED
    found.result.stdout.fnmatch_lines(["gpu-leak: the report *broken.html could not be written: interrupted by Ctrl-C"])
    assert found.verdicts == {"test_clean": "clean"}
    assert (pytester.path / "other.sarif").exists()
    assert not (pytester.path / "broken.html").exists()


@pytest.mark.usefixtures("cold")
def test_a_second_ctrl_c_ends_the_run(run: Runner, pytester: pytest.Pytester) -> None:
    conftest = pytester.path / "conftest.py"
    conftest.write_text(
        conftest.read_text() + "\nimport pytest_gpuleak.reports.formats as formats\n"
        "def interrupt(*_): raise KeyboardInterrupt\n"
        "formats.write_report = interrupt\n"
    )
    found = run(SUITE, "--gpu-leak-report=other.sarif", apart=True)
    assert "KeyboardInterrupt" in found.result.stderr.str()
    assert found.verdicts == {"test_leaks": "leaked", "test_clean": "clean"}  # of the journal


@pytest.mark.parametrize("target", ["finish", "render", "_seen"])
def test_a_baseline_that_fails_costs_no_report(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    (pytester.path / "leaks.toml").write_text("version = 1\n")
    spoil(monkeypatch, "session.features.baseline", f"BaselineRun.{target}")
    found = run(CLEAN, "--gpu-leak-baseline=leaks.toml")
    said = "showing the baseline failed" if target == "render" else "the run could not be held to the baseline"
    found.result.stdout.fnmatch_lines([f"gpu-leak: {said}: KeyError: 'a fault of ours'"])
    assert found.result.ret == (0 if target == "render" else 1)
    assert found.verdicts == {"test_clean": "clean"}


def test_a_device_that_answers_no_more_is_unknown(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "adapters.torch.framework", "TorchFramework.device_names")
    found = run(CLEAN)
    assert found.result.ret == 0
    assert found.report["environment"]["devices"] == ["unknown (KeyError: 'a fault of ours')"]


def test_pytests_own_exit_status_stands(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "session.leak_check", "LeakCheck.finish")
    found = run("def test_exit():\n    import pytest\n    pytest.exit('enough', returncode=77)\n")
    assert found.result.ret == 77
    assert "enough" in found.report["incomplete"]


def test_what_a_worker_sends_and_cannot_be_read_takes_one_line(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "session.records.recorder", "Recorder.take_worker")
    found = run(SUITE, "-n1")
    found.result.stdout.fnmatch_lines(
        ["gpu-leak: taking over what the fixtures of the worker gw0 left failed: KeyError*"]
    )
    assert found.result.ret == 1
    assert found.verdicts == {"test_leaks": "leaked", "test_clean": "clean"}


@pytest.mark.parametrize(
    ("module", "name", "options"),
    [
        ("reports.terminal.findings", "render_short", ()),
        ("reports.terminal.findings", "render_finding", ()),
        ("session.report_record", "properties_of", ("-n1",)),
        ("model.findings", "encode_finding", ()),
        ("model.findings", "encode_finding", ("-n1",)),  # which sends it
    ],
)
@pytest.mark.usefixtures("cold")
def test_a_leak_that_cannot_be_told_in_full_still_fails_its_test(
    run: Runner, pytester: pytest.Pytester, module: str, name: str, options: tuple[str, ...]
) -> None:
    # In a file, for workers are processes of their own. Not before the plugin has imported what uses it.
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(
            textwrap.dedent(
                f"""
                def pytest_sessionstart():
                    import pytest_gpuleak.{module} as module
                    import pytest_gpuleak.reports.terminal.section

                    def fail(*_, **__):
                        raise KeyError("a fault of ours")

                    for user in (module, pytest_gpuleak.reports.terminal.section):
                        if hasattr(user, "{name}"):
                            setattr(user, "{name}", fail)
                """
            )
        )
    found = run(SUITE, "--junitxml=junit.xml", *options, apart=True)
    assert "INTERNALERROR" not in found.result.stdout.str() + found.result.stderr.str()
    assert found.result.ret == 1
    assert found.verdicts == {"test_leaks": "leaked", "test_clean": "clean"}
    found.result.stdout.fnmatch_lines(["LEAKED test_it.py::test_leaks*", "gpu-leak: 1 leaked, 1 clean*"])
    assert 'errors="1"' in (pytester.path / "junit.xml").read_text()


def test_a_record_of_a_worker_that_cannot_be_read_is_unchecked(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "session.records.recorder", "decode_test")
    found = run(SUITE, "-n1")
    assert found.result.ret == 1
    assert found.verdicts == {"test_leaks": "unchecked", "test_clean": "unchecked"}
    assert "could not be read: KeyError" in found.tests["test_clean"]["why_unchecked"]

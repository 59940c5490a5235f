"""Faults of the check itself, stage by stage: what was seen to be left still fails, and the run says what failed."""

from __future__ import annotations

import gc
import importlib
import textwrap
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.schema import check_schema

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

GROWS = """
    KEPT = []

    def test_leaks():
        KEPT.append(Buffer(2**21))

    def test_next():
        pass
"""
ONCE = """
    KEPT = {}

    def test_leaks():
        KEPT.setdefault("model", Buffer(size))

    def test_next():
        pass
"""

FAULTS = {
    "the hint": ("explain.hints.order.advice_for", "growing", "the description of a finding"),
    "the walk down from roots": ("explain.lasting_roots.LastingRoots.reach", "growing", "the look at known culprits"),
    "the account": ("engine.left_behind.LeftBehind.note", "growing", "the account of what was left"),
    "the counters": (
        "engine.confirm.counter_evidence.CounterEvidence.add_run",
        "growing",
        "the reading of the counters",
    ),
    "their judgement": (
        "engine.confirm.counter_evidence.CounterEvidence.judge",
        "growing",
        "the reading of the counters",
    ),
    "the figures": ("engine.detect.counters.CounterWatch.record", "growing", "the reading of the test's figures"),
    "the re-run": ("session.rerun.subject.run_again", "unconfirmed", "the re-run"),
    "what puts the process back": ("session.rerun.rerun.unseen", "unconfirmed", "the re-run"),
    "the values of fixtures": ("session.rerun.subject.release_values", "unconfirmed", "the re-run"),
    "the ranks": ("session.rerun.subject.is_one_of_several_ranks", "unconfirmed", "the re-run"),
    "the comparison of runs": ("engine.judge.arrays.compare_runs", "unconfirmed", "the comparison of the runs"),
}
"""What is broken, what is said of a test that leaves 2 MiB each time, and the stage that is named."""


def broken(*_: object, **__: object) -> Any:
    raise TypeError("a fault of ours")


def break_down(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    parts = target.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(["pytest_gpuleak", *parts[:count]]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:-1]:
            owner = getattr(owner, name)
        assert hasattr(owner, parts[-1])
        monkeypatch.setattr(owner, parts[-1], broken)
        return
    raise AssertionError(target)


def warnings_of(found: Run) -> list[str]:
    return [line for line in found.result.outlines if "PytestWarning" in line]


@pytest.mark.parametrize(("target", "kind", "stage"), FAULTS.values(), ids=FAULTS)
def test_what_was_left_fails_all_the_same(
    run: Runner, monkeypatch: pytest.MonkeyPatch, target: str, kind: str, stage: str
) -> None:
    break_down(monkeypatch, target)
    found = run(GROWS)
    assert found.verdicts == {"test_leaks": "leaked", "test_next": "clean"}
    assert (found.finding("test_leaks")["kind"], found.finding("test_leaks")["bytes"]) == (kind, 2**21)
    (warning,) = warnings_of(found)
    assert f"{stage} failed: TypeError: a fault of ours (" in warning
    assert "test_faults.py:" in warning
    assert any(fault.startswith(f"{stage} failed: TypeError") for fault in found.tests["test_leaks"]["faults"])
    # The figures are read after each test, all else for a suspect, which the next test may be too: its heap may have grown.
    assert found.report["summary"]["faults"] in ((2,) if stage == "the reading of the test's figures" else (1, 2))
    assert found.result.ret == 1
    check_schema(found.report)


@pytest.mark.parametrize(("size", "verdict"), [(2**21, "leaked"), (2**19, "noted")])
def test_what_could_not_be_confirmed_is_judged_by_its_size(
    run: Runner, monkeypatch: pytest.MonkeyPatch, size: int, verdict: str
) -> None:
    break_down(monkeypatch, "session.rerun.subject.run_again")
    found = run(ONCE.replace("size", str(size)))
    assert found.verdicts["test_leaks"] == verdict
    finding = found.finding("test_leaks")
    assert (finding["kind"], finding["holder"]["root"]) == ("unconfirmed", "test_it.KEPT")
    assert finding["why_unconfirmed"].startswith(
        "the check failed while the test ran again: TypeError: a fault of ours"
    )
    assert "the run fails" not in found.result.stdout.str()
    assert found.result.ret == (1 if verdict == "leaked" else 0)


@pytest.mark.parametrize(
    ("target", "stage"),
    [
        ("explain.explain.explain", "the search for the holders of findings that waited"),
        ("engine.holders.Holders._count", "the walk over autograd graphs"),
    ],
)
def test_a_fault_of_the_late_search_is_the_sessions(
    run: Runner, monkeypatch: pytest.MonkeyPatch, target: str, stage: str
) -> None:
    break_down(monkeypatch, target)
    found = run(GROWS)
    assert found.verdicts == {"test_leaks": "leaked", "test_next": "clean"}
    assert (found.finding("test_leaks")["kind"], found.finding("test_leaks")["bytes"]) == ("growing", 2**21)
    assert found.holder("test_leaks") == "test_it.KEPT[0]", "a walk had reached it"
    (warning,) = warnings_of(found)
    (fault,) = found.report["faults"]
    assert f"{stage} failed: TypeError: a fault of ours (" in warning
    assert fault.startswith(f"{stage} failed: TypeError")
    assert found.result.ret == 1
    check_schema(found.report)


def test_without_a_search_the_report_says_why_no_holder_is_known(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    break_down(monkeypatch, "explain.explain.explain")
    for walk in ("reach", "reach_up"):
        break_down(monkeypatch, f"explain.lasting_roots.LastingRoots.{walk}")
    found = run(GROWS)
    assert found.holder("test_leaks").startswith("unknown: the search failed: TypeError: a fault of ours (")
    found.result.stdout.fnmatch_lines(
        ["*held by  unknown: the search failed: *", "*created  test_it.py:6 in test_leaks*"]
    )


def test_a_cache_filled_once_does_not_grow_where_its_holder_is_unknown(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_down(monkeypatch, "explain.explain.explain")
    assert run(ONCE.replace("size", "100")).finding("test_leaks")["kind"] == "retained"


def test_what_cannot_be_read_is_unchecked_and_no_later_test_is(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    break_down(monkeypatch, "engine.runs.Runs.end_run")
    found = run(GROWS)
    assert found.verdicts == {"test_leaks": "unchecked", "test_next": "clean"}
    assert found.tests["test_leaks"]["why_unchecked"].startswith("the reading of what was left failed: TypeError")
    found.result.stdout.fnmatch_lines(["gpu-leak: the check itself failed in 1 test (1 unchecked): the reading of *"])
    assert found.result.ret == 0


def test_the_baseline_is_left_out_where_it_fails(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(GROWS, "--gpu-leak-baseline=known.toml", "--gpu-leak-update-baseline")
    assert run(GROWS, "--gpu-leak-baseline=known.toml").verdicts["test_leaks"] == "noted"
    break_down(monkeypatch, "session.features.baseline.BaselineRun.settle")
    found = run(GROWS, "--gpu-leak-baseline=known.toml")
    assert "the comparison with the baseline failed: TypeError" in warnings_of(found)[0]
    assert found.tests["test_leaks"]["findings"][0]["bytes"] == 2**21


def test_a_fixture_that_cannot_be_checked_costs_no_test_its_verdict(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_down(monkeypatch, "engine.fixture_check.FixtureCheck._check_arrays")
    found = run(
        """
        import pytest
        KEPT = []

        @pytest.fixture(scope="module")
        def model():
            KEPT.append(Buffer(2**21))

        def test_it(model):
            pass
        """
    )
    assert found.verdicts == {"test_it": "clean"}
    (fault,) = found.report["faults"]
    assert fault.startswith("the check of a fixture failed: TypeError: a fault of ours")
    found.result.stdout.fnmatch_lines(
        ["gpu-leak: the check itself failed outside of the tests: the check of a fixture *"]
    )
    assert found.result.ret == 0


def test_a_counter_that_fails_is_a_fault_of_the_session(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gpuleak.adapters.host.probes import HeapProbe

    monkeypatch.setattr(HeapProbe, "read", broken)
    found = run("def test_it():\n    pass\n", "--gpu-leak-strict")
    assert found.verdicts == {"test_it": "clean"}
    assert found.report["faults"] == ["the counter heap failed: TypeError: a fault of ours"]
    assert found.result.ret == 1


def test_a_counter_that_the_machine_does_not_have_is_none(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gpuleak.adapters.host.probes import HeapProbe
    from pytest_gpuleak.model.readings import ProbeUnavailable

    def unavailable(_: object) -> None:
        raise ProbeUnavailable("no such function")

    monkeypatch.setattr(HeapProbe, "start", unavailable)
    found = run("def test_it():\n    pass\n", "--gpu-leak-strict")
    assert (found.report["faults"], found.result.ret) == ([], 0)


def test_a_test_that_failed_or_was_skipped_is_no_fault(run: Runner) -> None:
    found = run(
        """
        import pytest

        def test_skipped():
            pytest.skip("why not")

        @pytest.mark.xfail
        def test_expected():
            assert False
        """,
        "--gpu-leak-strict",
    )
    assert set(found.verdicts.values()) == {"unchecked"}
    assert (found.report["summary"]["faults"], found.report["faults"], found.result.ret) == (0, [], 0)
    assert "the check itself failed" not in found.result.stdout.str()


WATCHED: list[weakref.ref[object]] = []


def test_nothing_of_what_was_judged_is_kept(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault's traceback holds the arrays in its frames, here in a ring that only a collection would free."""
    from pytest_gpuleak.explain import explain

    WATCHED.clear()

    def broken_in_a_ring(targets: list[Any], **_: object) -> Any:
        WATCHED.extend(weakref.ref(target.memory) for target in targets)
        array, error = targets[0], TypeError("a fault of ours")  # noqa: F841 - a local of the frame that raises
        raise error

    monkeypatch.setattr(explain, "explain", broken_in_a_ring)
    try:
        found = run(
            """
            import gc
            from tests.acceptance.session.test_faults import WATCHED
            KEPT = {}

            def test_leaks():
                gc.disable()
                KEPT.setdefault("model", Buffer(2**21))  # what does not grow is searched for at once

            def test_gone():
                KEPT.clear()
                assert WATCHED
                assert [memory() for memory in WATCHED if memory() is not None] == []
            """
        )
    finally:
        gc.enable()
    assert found.verdicts["test_leaks"] == "leaked"
    found.result.assert_outcomes(passed=2, warnings=1)


HOOK = """
    def pytest_gpuleak_settle(config, nodeid):
        raise AttributeError("app.cache has no clear_all")
"""


@pytest.fixture
def faulty_hook(run: Runner, pytester: pytest.Pytester) -> None:
    del run  # writes the conftest.py that this adds to
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + textwrap.dedent(HOOK))


@pytest.mark.usefixtures("faulty_hook")
def test_strict_fails_a_run_in_which_the_check_failed(run: Runner) -> None:
    source = ONCE.replace("size", "100")
    lax = run(source)
    assert (lax.verdicts["test_leaks"], lax.result.ret) == ("noted", 0)
    strict = run(source, "--gpu-leak-strict")
    assert (strict.verdicts, strict.result.ret) == (lax.verdicts, 1)
    strict.result.stdout.fnmatch_lines(
        ["gpu-leak: the check itself failed in 1 test: the hook *; the run fails (--gpu-leak-strict)"]
    )
    quiet = run(source, "--gpu-leak-strict", "-q")
    quiet.result.stdout.fnmatch_lines(["*the run fails (--gpu-leak-strict)"])


@pytest.mark.usefixtures("faulty_hook")
def test_faults_of_workers_reach_the_controller(run: Runner) -> None:
    pytest.importorskip("xdist")
    found = run(ONCE.replace("size", "100"), "--gpu-leak-strict", "-n1", apart=True)
    (fault,) = found.tests["test_leaks"]["faults"]
    assert fault.startswith("the hook pytest_gpuleak_settle failed: AttributeError")
    found.result.stdout.fnmatch_lines(["gpu-leak: the check itself failed in 1 test: the hook *"])
    assert found.result.ret == 1


def test_faults_of_a_workers_session_reach_the_controller(run: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    conftest = pytester.path / "conftest.py"
    conftest.write_text("def pytest_gpuleak_arrays(config):\n    raise OSError('no such file')\n")
    found = run("def test_it():\n    pass\n", "--gpu-leak-strict", "-n1", apart=True)
    (fault,) = found.report["faults"]
    assert fault == "the hook pytest_gpuleak_arrays failed: OSError: no such file (conftest.py:2)"
    assert found.result.ret == 1

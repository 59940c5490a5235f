"""Budgets in runs of pytest, on devices of numbers alone."""

from __future__ import annotations

import json
import pathlib
import re
import textwrap
from collections.abc import Callable

import pytest

from tests.support.fake_devices import CONFTEST

Held = Callable[..., pytest.RunResult]
# Without hypothesis's plugin, which takes two seconds to load.
QUIET = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest", "-p", "no:flaky")
HEAD = """
    import pytest, unittest
    from tests.support.fake_devices import PROBE
    max_gpu_mb = pytest.mark.max_gpu_mb
"""


@pytest.fixture
def held(pytester: pytest.Pytester) -> Held:
    """Runs a test file's source on the devices of numbers, in this process."""
    pytester.makeconftest(textwrap.dedent(CONFTEST))

    def start(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=textwrap.dedent(HEAD) + textwrap.dedent(source))
        return pytester.runpytest_inprocess(*QUIET, "--strict-markers", "-rA", *arguments)

    return start


def outcomes(result: pytest.RunResult) -> dict[str, str]:
    """The outcome of each test by its name, from the short summary."""
    lines = re.findall(
        r"^(PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR|LEAKED) \S*?(test_\w+(?:\[\w+\])?)(?: |$)",
        text(result),
        re.MULTILINE,
    )
    return {name: outcome for outcome, name in lines}


def text(result: pytest.RunResult) -> str:
    return result.stdout.str()


SUITE = """
    @pytest.fixture(scope="module")
    def model():
        with PROBE.taken(300):
            PROBE.take(100)
        yield
        PROBE.give(100)

    @pytest.fixture(scope="module", params=["a", "b"])
    def other(request):
        with PROBE.taken(100):
            yield request.param

    @pytest.fixture
    def batch():
        with PROBE.taken(40):
            yield

    @max_gpu_mb(50)
    def test_held():
        with PROBE.taken(50): pass

    @max_gpu_mb(50)
    def test_exceeded():
        with PROBE.taken(51): pass

    @max_gpu_mb(50)
    def test_function_fixtures_count(batch):
        with PROBE.taken(11): pass

    @max_gpu_mb(50)
    def test_wider_fixtures_do_not(batch, model):
        with PROBE.taken(10): pass

    @max_gpu_mb(50)
    def test_wider_fixture_and_own(batch, model):
        with PROBE.taken(11): pass

    @max_gpu_mb(50, total=True)
    def test_total(model): pass

    @max_gpu_mb(50)
    def test_parameter_of_a_wider_fixture(other):
        with PROBE.taken({"a": 50, "b": 51}[other]): pass

    @max_gpu_mb(50)
    def test_second_device():
        PROBE.take(20)
        with PROBE.taken(60, "fake:1"): pass
        PROBE.give(20)

    @max_gpu_mb(50, device="fake:0")
    def test_another_device():
        with PROBE.taken(60, "fake:1"): pass

    @max_gpu_mb(50, device="fake:7")
    def test_unknown_device():
        with PROBE.taken(60, "fake:1"): pass

    @max_gpu_mb(50, metric="reserved")
    def test_reserved():
        PROBE.take(1, reserve=1000)
        PROBE.give(1)

    @pytest.mark.xfail(strict=True)
    @max_gpu_mb(1)
    def test_xfail():
        with PROBE.taken(51): pass

    @max_gpu_mb(1)
    def test_skips_itself():
        with PROBE.taken(51): pass
        pytest.skip("no")

    @max_gpu_mb(1)
    def test_fails_itself():
        with PROBE.taken(51): pass
        assert not "its own failure"

    @max_gpu_mb(1)
    class TestClosest:
        def test_by_class(self):
            with PROBE.taken(2): pass

        @max_gpu_mb(2)
        def test_by_function(self):
            with PROBE.taken(2): pass

        @pytest.mark.parametrize("size", [pytest.param(3, marks=max_gpu_mb(3)), pytest.param(4, marks=max_gpu_mb(3))])
        @max_gpu_mb(1)
        def test_by_parameter(self, size):
            with PROBE.taken(size): pass

    @max_gpu_mb(10)
    class TestUnit(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            PROBE.take(100)

        @classmethod
        def tearDownClass(cls):
            PROBE.give(100)

        def test_unit_held(self):
            with PROBE.taken(10): pass

        def test_unit_exceeded(self):
            with PROBE.taken(11): pass

        def test_unit_fails(self):
            with PROBE.taken(11): self.fail("its own failure")

        def test_unit_skips(self):
            with PROBE.taken(11): self.skipTest("no")

    def test_without_a_budget():
        with PROBE.taken(1000): pass
"""
EXPECTED = {
    "test_held": "PASSED",
    "test_exceeded": "FAILED",
    "test_function_fixtures_count": "FAILED",
    "test_wider_fixtures_do_not": "PASSED",
    "test_wider_fixture_and_own": "FAILED",
    "test_total": "FAILED",
    "test_parameter_of_a_wider_fixture[a]": "PASSED",
    "test_parameter_of_a_wider_fixture[b]": "FAILED",
    "test_second_device": "FAILED",
    "test_another_device": "PASSED",
    "test_unknown_device": "PASSED",
    "test_reserved": "FAILED",
    "test_xfail": "XFAIL",
    "test_fails_itself": "FAILED",
    "test_by_class": "FAILED",
    "test_by_function": "PASSED",
    "test_by_parameter[3]": "PASSED",
    "test_by_parameter[4]": "FAILED",
    "test_unit_held": "PASSED",
    "test_unit_exceeded": "FAILED",
    "test_unit_fails": "FAILED",
    "test_without_a_budget": "PASSED",
}
EXCEEDED = re.compile(r"^max_gpu_mb: .*", re.MULTILINE)


def test_a_suite_with_budgets(held: Held) -> None:
    result = held(SUITE)
    found = outcomes(result)
    assert {name: found.get(name) for name in EXPECTED} == EXPECTED
    counted = result.parseoutcomes()
    assert (counted["skipped"], counted["xfailed"]) == (2, 1)
    assert EXCEEDED.findall(text(result).partition("FAILURES")[2].partition("short test summary")[0]) == [
        f"max_gpu_mb: {said}"
        for said in (
            "peak of 51.0 MiB on fake:0 is 1.0 MiB over the budget of 50 MiB (before the test: 0 bytes allocated)",
            "peak of 51.0 MiB on fake:0 is 1.0 MiB over the budget of 50 MiB (before the test: 0 bytes allocated)",
            "peak of 51.0 MiB on fake:0 is 1.0 MiB over the budget of 50 MiB (before the test: 100.0 MiB allocated)",
            "total peak of 100.0 MiB on fake:0 is 50.0 MiB over the budget of 50 MiB (before the test: 100.0 MiB allocated)",
            "peak of 51.0 MiB on fake:0 is 1.0 MiB over the budget of 50 MiB (before the test: 200.0 MiB allocated)",
            "peak of 60.0 MiB on fake:1 is 10.0 MiB over the budget of 50 MiB (before the test: 0 bytes allocated)",
            "reserved peak of 600.0 MiB on fake:0 is 550.0 MiB over the budget of 50 MiB (before the test: 400.0 MiB reserved)",
            "peak of 2.0 MiB on fake:0 is 1.0 MiB over the budget of 1 MiB (before the test: 200.0 MiB allocated)",
            "peak of 4.0 MiB on fake:0 is 1.0 MiB over the budget of 3 MiB (before the test: 200.0 MiB allocated)",
            "peak of 11.0 MiB on fake:0 is 1.0 MiB over the budget of 10 MiB (before the test: 300.0 MiB allocated)",
        )
    ]
    result.stdout.fnmatch_lines(["gpu-leak: 1 budget was not checked: fake:7 was not used"])


def test_the_run_s_own_budget_is_for_tests_without_a_marker(held: Held) -> None:
    source = """
        def test_by_the_run():
            with PROBE.taken(51): pass

        def test_held_by_the_run():
            with PROBE.taken(50): pass

        @max_gpu_mb(60)
        def test_by_its_marker():
            with PROBE.taken(51): pass
    """
    result = held(source, "--gpu-leak-max-mb=50")
    assert outcomes(result) == {
        "test_by_the_run": "FAILED",
        "test_held_by_the_run": "PASSED",
        "test_by_its_marker": "PASSED",
    }
    result.stdout.fnmatch_lines(["--gpu-leak-max-mb: peak of 51.0 MiB on fake:0 is 1.0 MiB over the budget of 50 MiB*"])
    assert "budgets were not checked" not in text(result)


def test_without_a_device_budgets_are_counted_not_judged(held: Held) -> None:
    source = """
        def test_one(): pass
        @max_gpu_mb(0)
        def test_two(): pass
        def test_three(): pass
        def test_fails(): assert 0
        def test_skips(): pytest.skip("no")
    """
    result = held(source, "--gpu-leak-max-mb=0")
    result.assert_outcomes(passed=3, failed=1, skipped=1)
    assert text(result).count("gpu-leak:") == 1
    result.stdout.fnmatch_lines(["gpu-leak: 3 budgets were not checked: no device was used"])


def test_switched_off_nothing_is_judged_and_no_marker_is_checked(held: Held) -> None:
    source = """
        @max_gpu_mb(1)
        def test_one(request):
            with PROBE.taken(51): pass
            assert not request.config.pluginmanager.has_plugin("gpuleak-budgets")
            assert not PROBE.begun

        @max_gpu_mb("lots")
        def test_bad(): pass
    """
    held(source, "--no-gpu-leak", "--gpu-leak-max-mb=1").assert_outcomes(passed=2)


def test_without_budgets_nothing_is_measured(held: Held) -> None:
    source = """
        def test_max_gpu_mb(request):
            PROBE.take(1)
            assert not request.config.pluginmanager.has_plugin("gpuleak-budgets")
            assert not request.config.pluginmanager.has_plugin("gpuleak-peaks")

        def test_two(): assert not PROBE.begun
    """
    held(source).assert_outcomes(passed=2)


def test_a_probe_that_fails_in_mid_run(held: Held) -> None:
    source = """
        @max_gpu_mb(1)
        def test_exceeded():
            with PROBE.taken(2): pass

        @max_gpu_mb(1)
        def test_broken():
            with PROBE.taken(2): PROBE.broken = "the device is lost"

        @max_gpu_mb(1)
        def test_after(): pass

        def test_other(): pass
    """
    result = held(source)
    result.assert_outcomes(passed=3, failed=1)
    said = "gpu-leak: 2 budgets were not checked: the device's counters failed (RuntimeError: the device is lost)"
    result.stdout.fnmatch_lines([said])
    assert text(result).count("gpu-leak:") == 1


def test_a_marker_added_while_tests_run_may_be_bad(held: Held) -> None:
    source = """
        @max_gpu_mb(1)
        def test_marked(request):
            PROBE.take(2)
            request.node.add_marker(pytest.mark.max_gpu_mb("lots"), append=False)
    """
    result = held(source)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["gpu-leak: 1 budget was not checked: pytest.mark.max_gpu_mb: mb='lots' is not accepted*"]
    )


def test_of_several_attempts_the_last_one_counts(held: Held) -> None:
    pytest.importorskip("pytest_rerunfailures")
    source = """
        SIZES = [3, 2, 1]

        @max_gpu_mb(1)
        def test_flaky(request):
            from pytest_gpuleak.session.peak_hooks import BUDGET_FINDING
            assert BUDGET_FINDING not in request.node.stash
            with PROBE.taken(SIZES.pop(0)): pass
    """
    assert held(source, "-p", "rerunfailures", "--reruns=2").parseoutcomes() == {"passed": 1, "rerun": 2}


@pytest.mark.parametrize(
    ("marked", "said", "options"),
    [
        ("@max_gpu_mb\ndef test_one(): pass", "the size is missing, accepted is a number of MiB from 0, or ", ()),
        (
            "class TestIt:\n  pytestmark = max_gpu_mb(1, peak=2)\n  def test_one(self): pass",
            "unknown argument peak=2",
            ("--gpu-leak",),
        ),
    ],
)
def test_a_bad_marker_is_a_usage_error(held: Held, marked: str, said: str, options: tuple[str, ...]) -> None:
    result = held("def test_before(): raise RuntimeError('no test may run')\n" + marked, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (error,) = [line for line in result.stderr.lines if line.startswith("ERROR: ")]
    assert error.startswith(f"ERROR: pytest.mark.max_gpu_mb: {said}")
    assert re.search(r"; on test_it\.py::(TestIt::)?test_one \(test_it\.py:\d+\)$", error)
    assert "RuntimeError" not in text(result)


def test_the_option_may_be_off(held: Held) -> None:
    assert held("def test_one(): pass", "--gpu-leak-max-mb=off").ret == pytest.ExitCode.OK


BESIDE_THE_LEAK_CHECK = """
    from pytest_gpuleak.session.peak_hooks import BUDGET_FINDING
    from tests.support.standin import Buffer
    KEPT, RUNS = [], []

    @max_gpu_mb(10)
    def test_exceeded():
        kept = Buffer(1000)
        with PROBE.taken(11): pass

    @pytest.fixture(autouse=True)
    def look(request):
        yield
        finding = request.node.stash.get(BUDGET_FINDING, None)
        print("FOUND", request.node.name, None if finding is None else (finding.kind, finding.bytes >> 20))

    @max_gpu_mb(10)
    def test_leaks_and_would_exceed_when_run_again():
        RUNS.append(0)
        KEPT.append(Buffer(1000))
        with PROBE.taken(10 * len(RUNS)): pass

    def test_runs():
        assert len(RUNS) == 3  # the last one is traced for the lines
"""


def test_beside_the_leak_check(held: Held, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        standins="""
        from tests.support.standin import StandInArrays

        def pytest_gpuleak_arrays(config):
            return [StandInArrays()]
        """
    )
    pytester.syspathinsert()
    report = "--gpu-leak-report=report.json"
    result = held(BESIDE_THE_LEAK_CHECK, "--gpu-leak", "--gpu-leak-host=off", "-s", "-p", "standins", report)
    assert result.parseoutcomes() == {"failed": 1, "passed": 2, "leaked": 1}
    result.stdout.fnmatch_lines(["*FOUND test_exceeded ('budget', 11)"])
    result.stdout.fnmatch_lines(["  growing: 1 tensor, 1000 bytes on cpu; each run leaves 1000 bytes more"])
    assert "FOUND test_leaks_and_would_exceed_when_run_again (" not in text(result)
    tests = json.loads((pytester.path / "report.json").read_text(encoding="utf-8"))["tests"]
    peaks = {test["nodeid"].partition("::")[2]: test["memory"]["fake:0"]["peak"] >> 20 for test in tests}
    assert peaks == {"test_exceeded": 11, "test_leaks_and_would_exceed_when_run_again": 10, "test_runs": 0}


@pytest.mark.slow
def test_workers_of_xdist(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[3]))
    pytester.makeconftest(textwrap.dedent(CONFTEST))
    pytester.makepyfile(
        test_it="""
        import pytest
        from tests.support.fake_devices import PROBE

        @pytest.mark.max_gpu_mb(1)
        def test_exceeded():
            with PROBE.taken(2, "fake:0"): pass

        @pytest.mark.parametrize("x", range(4))
        @pytest.mark.max_gpu_mb(1, device="fake:1")
        def test_not_there(x): PROBE.take(0)
        """
    )
    result = pytester.runpytest_subprocess(*QUIET, "-n2")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["gpu-leak: 4 budgets were not checked: fake:1 was not used"])

    pytester.makepyfile(test_it="import pytest\n@pytest.mark.max_gpu_mb('lots')\ndef test_one(): pass")
    result = pytester.runpytest_subprocess(*QUIET, "-n1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: pytest.mark.max_gpu_mb: mb='lots' is not accepted, only *test_it.py::test_one*"]
    )

"""`max_host_mb`: each test that has it and passes is run once more, and measured there."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

SOURCE = """
    import tracemalloc
    import pytest

    MIB = 1 << 20
    RUNS = []
    max_host_mb = pytest.mark.max_host_mb

    @pytest.fixture(scope="module")
    def table():
        return bytearray(8 * MIB)

    @pytest.fixture
    def batch():
        return bytearray(MIB)

    @max_host_mb(4)
    def test_within_its_budget(table, batch):
        RUNS.append("within")
        assert bytearray(2 * MIB)

    @max_host_mb(4)
    def test_over(table, batch):
        RUNS.append("over")
        kept = [bytearray(MIB) for _ in range(6)]
        assert kept

    @max_host_mb("4MiB")
    def test_only_the_first_run():
        RUNS.append("first")
        assert RUNS.count("first") > 1 or bytearray(16 * MIB)

    @max_host_mb(4)
    def test_restarts_the_peak():
        RUNS.append("restarts")
        assert bytearray(16 * MIB)
        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()

    @max_host_mb(4)
    def test_fails_in_its_re_run():
        RUNS.append("fails")
        assert bytearray(16 * MIB)
        assert RUNS.count("fails") == 1

    @max_host_mb(4)
    @pytest.mark.gpu_leak(confirm=0)
    def test_is_not_run_again():
        RUNS.append("confirm")
        assert bytearray(16 * MIB)

    @max_host_mb(4)
    def test_stops_tracemalloc():
        RUNS.append("stops")
        assert bytearray(16 * MIB)
        tracemalloc.stop()

    @max_host_mb(4)
    @pytest.mark.xfail(strict=True)
    def test_expected_to_fail():
        RUNS.append("xfail")
        assert not bytearray(16 * MIB)

    @max_host_mb(4)
    @pytest.mark.xfail(reason="takes too much")
    def test_expected_to_fail_and_passes():
        RUNS.append("xpass")
        assert bytearray(16 * MIB)

    def test_runs():
        each = {name: RUNS.count(name) for name in RUNS}
        assert each == {
            "within": 2, "over": 3, "first": 2, "restarts": 3, "fails": 2, "confirm": 1, "stops": 2, "xfail": 1,
            "xpass": 1,
        }

    @max_host_mb(4)
    def test_last_with_its_fixture_set_up_again(table):
        assert bytearray(6 * MIB)
"""
OVER = {"test_over", "test_restarts_the_peak", "test_last_with_its_fixture_set_up_again"}
FAILURE = """
max_host_mb: peak of 7.0 MiB on the host is 3.0 MiB over the budget of 4 MiB (measured in a re-run after teardown)
  when    call, test_it.py:*
*6.0 MiB  * blocks * held  test_it.py:26
*1.0 MiB  * block* * held  test_it.py:16
  without the * blocks of line 26: 1.0 MiB, within the budget
"""


def check(found: pytest.RunResult) -> None:
    assert {line.split("::")[1].split(" ")[0] for line in found.outlines if line.startswith("FAILED")} == OVER
    found.assert_outcomes(passed=9, failed=len(OVER), xfailed=1, xpassed=1)
    found.stdout.fnmatch_lines(textwrap.dedent(FAILURE).strip().splitlines())
    found.stdout.fnmatch_lines(["gpu-leak: 4 budgets were not checked: *"])
    text = found.stdout.str()
    for why in (
        "the re-run failed in call (1)",
        "the test was not run again, since confirm is 0 (1)",
        "the test is expected to fail, and too large a peak would be no failure (1)",
        "the test stops or clears tracemalloc, which measures it (1)",
    ):
        assert why in text


def test_without_the_leak_check(run: Runner) -> None:
    check(run(SOURCE, plugin="-v", report=False).result)


@pytest.fixture
def checked(run: Runner) -> Run:
    return run(SOURCE)


def test_with_the_leak_check_the_report_has_it(checked: Run) -> None:
    check(checked.result)
    assert set(checked.verdicts.values()) == {"clean", "unchecked"}
    assert {name for name, test in checked.tests.items() if test["findings"]} == OVER
    finding = checked.finding("test_over")
    assert (finding["kind"], finding["failed"], finding["device"], finding["metric"]) == ("budget", True, "cpu", "heap")
    peak = finding["peak"]
    assert 7 << 20 <= peak["bytes"] == finding["bytes"] < (7 << 20) + (64 << 10)
    assert abs(sum(part["bytes"] for part in peak["parts"]) + peak["unexplained_bytes"] - peak["bytes"]) < 64 << 10
    assert [part["created"]["line"] for part in peak["parts"]] == [26, 16]
    assert checked.tests["test_over"]["outcome"] == "failed"


LEAKS_TOO = """
    import pytest
    KEPT = []

    @pytest.mark.max_host_mb(4)
    def test_it():
        KEPT.append(Buffer(2**20))
        assert bytearray(6 << 20)

    def test_clean():
        pass
"""


def test_a_test_that_leaks_too_is_told_for_both(run: Runner) -> None:
    found = run(LEAKS_TOO)
    assert found.verdicts == {"test_it": "leaked", "test_clean": "clean"}
    assert [one["kind"] for one in found.tests["test_it"]["findings"]] == ["growing", "budget"]
    found.result.stdout.fnmatch_lines(["LEAKED *test_it", "*max_host_mb*"])


def test_a_leak_that_fails_nothing_hides_no_budget(run: Runner) -> None:
    found = run(LEAKS_TOO, "--gpu-leak-warn")
    assert found.verdicts == {"test_it": "leaked", "test_clean": "clean"}
    assert found.tests["test_it"]["outcome"] == "failed"
    found.result.assert_outcomes(passed=2, failed=1)
    found.result.stdout.fnmatch_lines(["FAILED *test_it - max_host_mb: *"])


def test_in_workers(run: Runner) -> None:
    pytest.importorskip("xdist")
    check(run(SOURCE, "-p", "xdist", "-n1", apart=True).result)


def test_a_bad_marker_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.max_host_mb('much')\ndef test_it(): pass")
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    assert "pytest.mark.max_host_mb: mb='much' is not accepted" in found.stderr.str()


def test_it_is_switched_off(run: Runner) -> None:
    found = run(SOURCE, plugin="--no-gpu-leak", report=False).result
    found.assert_outcomes(passed=8, failed=1, xfailed=1, xpassed=1)
    found.stdout.fnmatch_lines(["FAILED *::test_runs *"])


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_one_number_in_each_order(run: Runner, pytester: pytest.Pytester) -> None:
    """The first test that multiplies loads libraries and caches, and others leave memory free."""
    source = """
        import numpy as np
        import pytest, torch
        pytestmark = pytest.mark.max_host_mb("1KiB")

        def test_numpy():
            a = np.ones((512, 1024))
            assert (a + 1).sum()

        def test_torch():
            a = torch.ones(512, 512)
            assert (a @ a).sum()

        def test_objects():
            assert [str(number) for number in range(20_000)]
    """
    names = ["test_numpy", "test_torch", "test_objects"]
    peaks: list[dict[str, int]] = []
    for order in (names, names[::-1]):
        found = run(source, *(f"test_it.py::{name}" for name in order), apart=True)
        peaks.append({name: found.finding(name)["bytes"] for name in names})
    first, second = peaks
    assert all(abs(first[name] - second[name]) < 64 << 10 for name in names), peaks
    assert 8 << 20 <= first["test_numpy"] < (8 << 20) + (64 << 10)
    assert 2 << 20 <= first["test_torch"] < (2 << 20) + (64 << 10)

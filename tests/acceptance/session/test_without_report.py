"""What a run says does not depend on whether somebody asks for a report: only what is kept of a clean test does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

SUITE = """
    import pytest
    KEPT = []

    class Circle:
        def __init__(self):
            self.itself, self.buffer = self, Buffer(100)

    @pytest.mark.parametrize("i", range(3))
    def test_leaks(i):
        KEPT.append(Buffer(100))

    def test_leaves_a_cycle():
        Circle()

    @pytest.mark.allow_gpu_leak(reason="known")
    def test_is_allowed():
        KEPT.append(Buffer(100))

    @pytest.mark.parametrize("i", range(4))
    def test_clean(i):
        assert Buffer(5)

    def test_fails():
        assert not Buffer(5)

    @pytest.mark.skip
    def test_is_skipped():
        pass

    @pytest.fixture(scope="module")
    def model():
        kept = Buffer(2**21)
        KEPT.append(kept)
        return kept

    def test_uses_a_fixture(model):
        pass
"""

OUTSIDE = """
    import pytest
    from _pytest.reports import TestReport
    from _pytest.runner import CallInfo
    from tests.support.standin import StandInArrays

    def pytest_gpuleak_arrays(config):
        return [StandInArrays()]

    def pytest_runtest_protocol(item, nextitem):
        if "clean" not in item.name:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for when in ("setup", "call", "teardown"):
            call = CallInfo.from_call(lambda: None, when=when)
            item.ihook.pytest_runtest_logreport(report=TestReport.from_item_and_call(item, call))
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
"""


def said(result: pytest.RunResult) -> list[str]:
    """The lines from the first test on, without times, prices and addresses."""
    lines = result.stdout.lines
    start = next(index for index, line in enumerate(lines) if line.startswith(("collected", "gw0", "created")))
    varies = re.compile(r"0x[0-9a-f]+|gw\d+|in [\d.]+s|; [\d.]+ (us|ms|s) a clean test.*|=+|-+")
    return sorted(varies.sub("", line) for line in lines[start + 1 :] if not line.startswith(("[gw", "gw")))


@pytest.mark.parametrize("workers", [[], ["-n2", "--dist=loadfile"]], ids=["one process", "xdist"])
def test_the_same_is_said(run: Runner, workers: list[str]) -> None:
    if workers:
        pytest.importorskip("xdist")
    found = run(SUITE, *workers, apart=True)
    alone = run("", *workers, apart=True, report=False).result
    assert said(alone) == said(found.result)
    assert alone.ret == found.result.ret == pytest.ExitCode.TESTS_FAILED
    alone.stdout.fnmatch_lines(
        ["gpu-leak: 3 leaked, 1 fixture leaked ('*'), 1 noted, 1 allowed, 2 unchecked, 5 clean;*"]
    )
    assert found.fixtures["model"]["worker"] in ({"gw0", "gw1"} if workers else {"main"})


def test_tests_that_brought_no_record_are_counted(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(OUTSIDE)
    alone = run(SUITE, "-k", "clean or cycle", report=False).result
    alone.stdout.fnmatch_lines(["gpu-leak: 0 leaked, 1 noted, 4 unchecked, 0 clean*"])

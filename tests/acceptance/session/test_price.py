"""What suspects cost is told: in the summary line, by test in the report, and the slowest with --gpu-leak-top."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

SUITE = """
    import time

    from tests.support.standin import Buffer

    KEPT = []

    def test_clean():
        pass

    def test_slow_leak():
        KEPT.append(Buffer(64))
        time.sleep(0.2)

    def test_quick_leak():
        KEPT.append(Buffer(64))
"""


def test_the_price_of_suspects_is_told(run: Runner) -> None:
    found = run(SUITE, "--gpu-leak-top=1")
    assert found.tests["test_clean"]["suspect_s"] == {}
    slow = found.tests["test_slow_leak"]["suspect_s"]
    assert slow.keys() == {"check", "reruns", "search"}
    assert slow["check"] >= slow["reruns"] + slow["search"]
    assert slow["reruns"] >= 0.2
    assert slow["search"] > 0
    # The search for names comes after the test, with those of others.
    assert found.tests["test_slow_leak"]["overhead_s"] >= slow["check"] - slow["search"]
    suspects = found.report["summary"]["suspects"]
    assert suspects["tests"] == 2
    assert suspects["check_s"] == pytest.approx(
        sum(found.tests[name]["suspect_s"]["check"] for name in ("test_slow_leak", "test_quick_leak"))
    )
    found.result.stdout.fnmatch_lines(
        [
            "gpu-leak: the suspects that took longest to check",
            "* s  re-runs *, search *test_slow_leak",
            "gpu-leak: 2 leaked, 1 clean; *s a clean test; 2 suspects took * s (re-runs *, search *)",
        ]
    )
    found.result.stdout.no_fnmatch_line("*re-runs *test_quick_leak")


def test_the_price_that_was_asked_for_is_told_quietly_too(run: Runner) -> None:
    found = run(SUITE, "--gpu-leak-top=1", "-q")
    found.result.stdout.fnmatch_lines(
        ["gpu-leak: the suspects that took longest to check", "* s  re-runs *, search *test_slow_leak"]
    )
    run("", "-q").result.stdout.no_fnmatch_line("*the suspects that took longest*")


def test_without_suspects_no_price_is_told(run: Runner) -> None:
    found = run("def test_clean(): pass", "--gpu-leak-top=1")
    assert found.report["summary"]["suspects"]["tests"] == 0
    found.result.stdout.no_fnmatch_line("*suspects *")

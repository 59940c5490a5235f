"""One attempt of one test, and its outcome in the words of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from pytest_gpuleak.policy import Policy
    from pytest_gpuleak.records import Outcome

CHECKED = frozenset({"passed", "xpassed"})
"""Outcomes after which nothing but a leak holds what a test made."""

WORDS: dict[Outcome, str] = {"failed": "failed", "skipped": "was skipped", "xfailed": "xfailed", "error": "erred"}


class Attempt:
    """One attempt of one test, while it runs: times and outcome, no node and no report.

    Args:
        nodeid: pytest's id of the test.
        policy: what it may leave behind.
    """

    def __init__(self, nodeid: str, policy: Policy) -> None:
        self.nodeid = nodeid
        self.policy = policy
        self.outcome: Outcome = "passed"
        self.why: str | None = None
        self.duration_s = 0.0
        self.overhead_s = 0.0


def outcome_of(report: pytest.TestReport) -> Outcome:
    """A phase's outcome in the words of the report."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed" if report.passed else "failed"
    if report.outcome == "passed":
        return "passed"
    if report.skipped:
        return "skipped"
    return "failed" if report.when == "call" else "error"

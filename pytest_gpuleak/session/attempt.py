"""One attempt of one test: what is noted while it runs, its outcome in the words of the report, and its record.

The record holds plain data only, as `model.findings` do. It is all of a run's account that a run without a leak makes.
"""

from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.outcomes import Outcome, TestRecord, encode_test

if TYPE_CHECKING:
    import pytest

    from pytest_gpuleak.model.findings import FixtureRecord
    from pytest_gpuleak.model.policy import Policy


WORDS: dict[Outcome, str] = {"failed": "failed", "skipped": "was skipped", "xfailed": "xfailed", "error": "erred"}


class Attempt:
    """One attempt of one test, while it runs: times and outcome, no node and no report.

    Args:
        nodeid: pytest's id of the test.
        policy: what it may leave behind.
    """

    __slots__ = ("duration_s", "nodeid", "outcome", "overhead_s", "policy", "why")

    def __init__(self, nodeid: str, policy: "Policy") -> None:
        self.nodeid = nodeid
        self.policy = policy
        self.outcome: Outcome = "passed"
        self.why: str | None = None
        self.duration_s = 0.0
        self.overhead_s = 0.0


def outcome_of(report: "pytest.TestReport") -> Outcome:
    """A phase's outcome in the words of the report."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed" if report.passed else "failed"
    if report.outcome == "passed":
        return "passed"
    if report.skipped:
        return "skipped"
    return "failed" if report.when == "call" else "error"


def encode_safely(record: "TestRecord | FixtureRecord") -> dict[str, Any]:
    """Encode a record; of one that a fault has spoilt, what can be written, and a line that says what cannot."""
    if isinstance(record, TestRecord) and not record.findings:
        return encode_test(record)  # a run without a leak loads no more than this module for it
    from pytest_gpuleak.model.isolation import isolated
    from pytest_gpuleak.model.records import encode

    def salvaged(_: str) -> dict[str, Any]:
        from pytest_gpuleak.reports.json.salvage import salvage_record

        return salvage_record(record)

    return isolated(lambda: encode(record), salvaged)

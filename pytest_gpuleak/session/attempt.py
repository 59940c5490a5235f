"""One attempt of one test: what is noted while it runs, its outcome in the words of the report, and its record.

The record holds plain data only, as `model.findings` do. It is all of a run's account that a run without a leak makes.
"""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import pytest

    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.policy import Policy

# Without postponed annotations a NamedTuple takes half the time to make: none of them has to be compiled.
Verdict = Literal["clean", "leaked", "noted", "allowed", "unchecked"]
Outcome = Literal["passed", "failed", "skipped", "xfailed", "xpassed", "error"]

CHECKED = frozenset({"passed", "xpassed"})
"""Outcomes after which nothing but a leak holds what a test made."""

WORDS: dict[Outcome, str] = {"failed": "failed", "skipped": "was skipped", "xfailed": "xfailed", "error": "erred"}


class TestRecord(NamedTuple):  # no dataclass: a frozen one of twelve fields takes 2 ms of each run's start
    """One attempt of one test.

    Attributes:
        nodeid: pytest's id of the test.
        verdict: what the plugin says.
        why_unchecked: the reason where the verdict is ``unchecked``, else None.
        outcome: the test's own outcome, the same as without the plugin.
        worker: the xdist worker that ran it (``gw0``), or ``main``.
        duration_s: seconds of setup, call and teardown, without the plugin's own work.
        overhead_s: seconds that the plugin added.
        memory: counters by device, before and after; empty where no probe ran.
        findings: what was left behind.
        allowed: the reason given to ``allow_gpu_leak``, or None.
        file: its source file, relative to the rootdir where it lies below it; None: unknown.
        line: its line there, from 1.
        faults: what of the check itself, or of a user's hook, failed on it: a sentence each.
    """

    nodeid: str
    verdict: Verdict
    why_unchecked: str | None
    outcome: Outcome
    worker: str
    duration_s: float
    overhead_s: float
    memory: dict[str, dict[str, int]] = {}  # noqa: RUF012 - nobody writes to a record's
    findings: "tuple[Finding, ...]" = ()
    allowed: str | None = None
    file: str | None = None
    line: int | None = None
    faults: tuple[str, ...] = ()


TestRecord.__test__ = False  # type: ignore[attr-defined] # pytest would collect a class of this name from a test module


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


def encode_test(record: TestRecord) -> dict[str, Any]:
    """The record as JSON-ready dicts, lists and scalars."""
    fields = record._asdict()
    fields["findings"] = []
    if record.findings:
        from pytest_gpuleak.model.findings import encode_finding

        fields["findings"] = [encode_finding(finding) for finding in record.findings]
    return fields


def encode_safely(record: "TestRecord | FixtureRecord") -> dict[str, Any]:
    """Encode a record; of one that a fault has spoilt, what can be written, and a line that says what cannot."""
    if isinstance(record, TestRecord) and not record.findings:
        return encode_test(record)  # a run without a leak loads no more than this module for it
    from pytest_gpuleak.model.isolation import isolated
    from pytest_gpuleak.model.records import encode_record

    def salvaged(_: str) -> dict[str, Any]:
        from pytest_gpuleak.reports.json.salvage import salvage_record

        return salvage_record(record)

    return isolated(lambda: encode_record(record), salvaged)


def decode_test(data: dict[str, Any]) -> TestRecord:
    """The inverse of `encode_test`. Raises KeyError or TypeError for anything else."""
    findings: tuple[Finding, ...] = ()
    if data["findings"]:
        from pytest_gpuleak.model.findings import decode_finding

        findings = tuple(map(decode_finding, data["findings"]))
    return TestRecord(**{**data, "findings": findings, "faults": tuple(data.get("faults", ()))})

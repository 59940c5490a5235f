"""What is noted of a test or a fixture while it runs, as plain data: all that a run without a leak makes.

It stands apart from `records`, so that such a run loads no more.
"""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

# Without postponed annotations a NamedTuple takes half the time to make: none of them has to be compiled.
Verdict = Literal["clean", "leaked", "noted", "allowed", "unchecked"]

Outcome = Literal["passed", "failed", "skipped", "xfailed", "xpassed", "error"]

CHECKED = frozenset({"passed", "xpassed"})
"""Outcomes after which nothing but a leak holds what a test made."""


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


def encode_test(record: TestRecord) -> dict[str, Any]:
    """The record as JSON-ready dicts, lists and scalars."""
    fields = record._asdict()
    fields["findings"] = []
    if record.findings:
        from pytest_gpuleak.model.findings import encode_finding

        fields["findings"] = [encode_finding(finding) for finding in record.findings]
    return fields


def decode_test(data: dict[str, Any]) -> TestRecord:
    """The inverse of `encode_test`. Raises KeyError or TypeError for anything else."""
    findings: tuple[Finding, ...] = ()
    if data["findings"]:
        from pytest_gpuleak.model.findings import decode_finding

        findings = tuple(map(decode_finding, data["findings"]))
    return TestRecord(**{**data, "findings": findings, "faults": tuple(data.get("faults", ()))})


class FixturePlace(NamedTuple):
    """Which fixture it is, as plain data.

    Attributes:
        name: the fixture's name, or what the user wrote for xunit-style setup (``TestModel.setup_class``).
        scope: ``class``, ``module``, ``package`` or ``session``.
        baseid: nodeid of the place that defines it.
        file: source file of the fixture function, where known.
        line: its line, from 1.
    """

    name: str
    scope: str
    baseid: str
    file: str | None
    line: int | None

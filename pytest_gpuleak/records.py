"""The records of a run: one for each test, and the whole of them, which every report renders.

As in `findings`, instances hold plain data only. They stand apart from findings, which most runs never make.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.findings import Finding, FixtureRecord, KnownLeak

Verdict = Literal["clean", "leaked", "noted", "allowed", "unchecked"]
Outcome = Literal["passed", "failed", "skipped", "xfailed", "xpassed", "error"]

SCHEMA = "pytest-gpuleak/report/1"
"""Identifies the format of the JSON report."""


@dataclasses.dataclass(frozen=True, slots=True)  # there is one for each test of a run
class TestRecord:
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
    """

    __test__ = False  # pytest would try to collect a class of this name in a test module that imports it

    nodeid: str
    verdict: Verdict
    why_unchecked: str | None
    outcome: Outcome
    worker: str
    duration_s: float
    overhead_s: float
    memory: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    allowed: str | None = None
    file: str | None = None
    line: int | None = None


@dataclasses.dataclass(frozen=True)
class RunReport:
    """A whole run, as every report renders it.

    Attributes:
        created: when, as an ISO 8601 time with its offset.
        environment: python, platform, pytest, torch, devices: plain values.
        policy: the options in force for tests without a marker.
        summary: counts and sums over the run.
        tests: one record an attempt, in the order they ended.
        fixtures: the wider fixtures with findings.
        stale: entries of the baseline whose leak is gone.
        incomplete: why tests are missing (the run was killed, interrupted, stopped early, a worker died); None: none is.
    """

    created: str
    environment: dict[str, Any]
    policy: dict[str, Any]
    summary: dict[str, Any]
    tests: tuple[TestRecord, ...]
    fixtures: tuple[FixtureRecord, ...]
    stale: tuple[KnownLeak, ...] = ()
    incomplete: str | None = None


_TEST_FIELDS = tuple(field.name for field in dataclasses.fields(TestRecord))
_read_test = attrgetter(*_TEST_FIELDS)


def encode(record: TestRecord | FixtureRecord | RunReport) -> dict[str, Any]:
    """The record as JSON-ready dicts, lists and scalars: for the JSON report and for an xdist worker's channel."""
    if isinstance(record, RunReport):
        return {
            **vars(record),
            "tests": [encode(test) for test in record.tests],
            "fixtures": [encode(fixture) for fixture in record.fixtures],
            "stale": [dict(vars(entry)) for entry in record.stale],
        }
    # By hand: dataclasses.asdict() copies every scalar, half a millisecond for a test with a few arrays.
    if isinstance(record, TestRecord):
        fields = dict(zip(_TEST_FIELDS, _read_test(record), strict=True))
    else:
        fields = dict(vars(record))
    fields["findings"] = _encode_findings(record.findings)
    return fields


def _encode_findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    if not findings:
        return []
    from pytest_gpuleak.findings import encode_finding

    return [encode_finding(finding) for finding in findings]


def _decode_findings(encoded: Sequence[dict[str, Any]]) -> tuple[Finding, ...]:
    if not encoded:
        return ()
    from pytest_gpuleak.findings import decode_finding

    return tuple(map(decode_finding, encoded))


def decode_test(data: dict[str, Any]) -> TestRecord:
    """The inverse of `encode` for a test's record. Raises KeyError or TypeError for anything else."""
    return TestRecord(**{**data, "findings": _decode_findings(data["findings"])})


def decode_fixture(data: dict[str, Any]) -> FixtureRecord:
    """The inverse of `encode` for a fixture's record. Raises KeyError or TypeError for anything else."""
    from pytest_gpuleak.findings import FixtureRecord

    return FixtureRecord(**{**data, "findings": _decode_findings(data["findings"])})

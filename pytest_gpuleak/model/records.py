"""The records of a run, which every report renders: one for each test, one for each fixture that did not let go.

As in `model.findings`, instances hold plain data only. They stand apart from findings, which most runs never make.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.outcomes import Outcome, TestRecord, Verdict, decode_test, encode_test

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import FixtureRecord, KnownLeak

__all__ = ["SCHEMA", "Outcome", "RunReport", "TestRecord", "Verdict", "decode_fixture", "decode_test", "encode"]

SCHEMA = "pytest-gpuleak/report/1"
"""Identifies the format of the JSON report."""


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
        faults: what of the check itself, or of a user's hook, failed outside of tests: a sentence each.
    """

    created: str
    environment: dict[str, Any]
    policy: dict[str, Any]
    summary: dict[str, Any]
    tests: tuple[TestRecord, ...]
    fixtures: tuple[FixtureRecord, ...]
    stale: tuple[KnownLeak, ...] = ()
    incomplete: str | None = None
    faults: tuple[str, ...] = ()


def encode(record: TestRecord | FixtureRecord | RunReport) -> dict[str, Any]:
    """The record as JSON-ready dicts, lists and scalars: for the JSON report and for an xdist worker's channel."""
    if isinstance(record, TestRecord):
        return encode_test(record)
    if isinstance(record, RunReport):
        return {
            **vars(record),
            "tests": [encode_test(test) for test in record.tests],
            "fixtures": [encode(fixture) for fixture in record.fixtures],
            "stale": [dict(vars(entry)) for entry in record.stale],
        }
    from pytest_gpuleak.model.findings import encode_finding

    # By hand: dataclasses.asdict() copies every scalar, half a millisecond for a fixture with a few arrays.
    return {**vars(record), "findings": [encode_finding(finding) for finding in record.findings]}


def encode_record(record: TestRecord | FixtureRecord | KnownLeak) -> dict[str, Any]:
    """The record of a test, a fixture or a stale entry as JSON-ready dicts, lists and scalars."""
    if isinstance(record, TestRecord):
        return encode_test(record)
    from pytest_gpuleak.model.findings import KnownLeak

    return dict(vars(record)) if isinstance(record, KnownLeak) else encode(record)


def decode_fixture(data: dict[str, Any]) -> FixtureRecord:
    """The inverse of `encode` for a fixture's record. Raises KeyError or TypeError for anything else."""
    from pytest_gpuleak.model.findings import FixtureRecord, decode_finding

    return FixtureRecord(**{**data, "findings": tuple(map(decode_finding, data["findings"]))})

"""The records of a run that every report renders. A run without leaks never loads `model.findings`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.outcomes import Outcome, TestRecord, Verdict, decode_test, encode_test

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import FixtureRecord, KnownLeak

__all__ = ["SCHEMA", "Outcome", "RunReport", "TestRecord", "Verdict", "decode_fixture", "decode_test", "encode"]

SCHEMA = "pytest-gpuleak/report/1"


@dataclasses.dataclass(frozen=True)
class RunReport:
    """A whole run, as every report renders it. `created` is an ISO 8601 time with its offset.

    `incomplete` says why tests are missing (killed, interrupted, stopped early, a worker died); None: none is. `faults`
    are failures of the check itself, or of a user's hook, outside of tests: a sentence each.
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


def encode(record: TestRecord | FixtureRecord | KnownLeak) -> dict[str, Any]:
    """Encode a test, fixture or stale entry as dicts, lists and scalars, for JSON and xdist's channel."""
    if isinstance(record, TestRecord):
        return encode_test(record)
    from pytest_gpuleak.model import finding_codec

    fields: dict[str, Any] = finding_codec.encode(record)
    return fields


def decode_fixture(data: dict[str, Any]) -> FixtureRecord:
    """Decode what `encode` returned for a fixture. Raises KeyError or TypeError for anything else."""
    from pytest_gpuleak.model.finding_codec import decode
    from pytest_gpuleak.model.findings import FixtureRecord

    record: FixtureRecord = decode(FixtureRecord, data)
    return record

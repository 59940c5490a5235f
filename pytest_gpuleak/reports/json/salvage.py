"""Write what can be written of a record that a fault of ours has spoilt: whose it is, its verdict, its other findings."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from pytest_gpuleak.model.finding_codec import encode_finding
from pytest_gpuleak.model.findings import Finding, FixtureRecord
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.outcomes import TestRecord
from pytest_gpuleak.model.records import encode
from pytest_gpuleak.reports.json.plain import encode_line

UNKNOWN = "could not be written"
"""Text in the place of a text that cannot be written."""

_FINDING = Finding("unconfirmed", True, UNKNOWN, 0, 0, 0, "00")


def salvage_record(record: TestRecord | FixtureRecord, why: str) -> dict[str, Any]:
    """Return as much as can be written of a test's or fixture's record, as plain values. A spoilt finding names its error."""
    findings = [isolated(partial(_checked, found), _spoilt) for found in record.findings]
    fault = f"its record {UNKNOWN} whole ({why})"
    bare: TestRecord | FixtureRecord
    if isinstance(record, TestRecord):
        bare = TestRecord(*record[:7], faults=(fault,))
    else:
        bare = FixtureRecord(record.name, record.scope, record.baseid, ())
    return {**encode(bare), "findings": findings}


def _checked(found: Finding) -> dict[str, Any]:
    encoded = encode_finding(found)
    encode_line(encoded)
    return encoded


def _spoilt(why: str) -> dict[str, Any]:
    return encode_finding(dataclasses.replace(_FINDING, evidence=(f"this finding {UNKNOWN} ({why})",)))

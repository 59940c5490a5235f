"""Write what can be written of a record: a field that fails takes a default, and the record names the error."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.device_wait import encode_wait
from pytest_gpuleak.model.finding_codec import encode_finding
from pytest_gpuleak.model.findings import Edit, Finding, FixtureRecord, KnownLeak
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.outcomes import TestRecord
from pytest_gpuleak.reports.json.plain import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

UNKNOWN = "could not be written"
"""Text in the place of a text that cannot be written."""

_TEST = TestRecord(UNKNOWN, "unchecked", None, "failed", UNKNOWN, 0.0, 0.0)
_FIXTURE = FixtureRecord(UNKNOWN, "session", "", ())
_ENTRY = KnownLeak(UNKNOWN, None, "unconfirmed", UNKNOWN, 0, "00")
_FINDING = Finding("unconfirmed", True, UNKNOWN, 0, 0, 0, "00")


def salvage_mapping(values: Mapping[str, Any], why: str) -> dict[str, Any]:
    """Return the values that can be written, by name."""

    def part() -> dict[str, Any]:
        return {str(name): _checked_or_named(value) for name, value in values.items()}

    return isolated(part, lambda _: {UNKNOWN: why})


def _checked_or_named(value: Any) -> Any:
    return isolated(lambda: _checked(value), lambda why: f"{UNKNOWN} ({why})")


def salvage_record(record: TestRecord | FixtureRecord | KnownLeak) -> dict[str, Any]:
    """Return as much as can be written of a test's, fixture's or stale entry's record, as plain values."""
    if isinstance(record, TestRecord):
        found, faults = _salvage(record, _TEST._asdict(), _encode_of_test)
        if faults and found["verdict"] == "unchecked":
            found["why_unchecked"] = "; ".join(filter(None, (found["why_unchecked"], *faults)))
    else:
        found, faults = _salvage(record, vars(_FIXTURE if isinstance(record, FixtureRecord) else _ENTRY), _as_it_is)
    if not isinstance(record, KnownLeak):
        findings = isolated(lambda: list(record.findings), lambda _: [])
        found["findings"] = list(map(_salvage_finding, findings))
        if found["findings"]:
            found["findings"][0]["evidence"] += faults
    return found


def _encode_of_test(name: str, value: Any) -> Any:
    if name == "helpers":
        return [one._asdict() for one in value]
    return encode_wait(value) if name == "device_wait" and value is not None else value


def _as_it_is(_: str, value: Any) -> Any:
    return value


def _salvage_finding(finding: Finding) -> dict[str, Any]:
    def encode(name: str, value: Any) -> Any:
        plain_already = value is None or isinstance(value, (str, int))
        if isinstance(value, Edit):
            return vars(value)
        return value if plain_already else encode_finding(dataclasses.replace(_FINDING, **{name: value}))[name]

    blank = {**vars(_FINDING), "edit": None}
    del blank["baseline"]  # a line of the evidence
    found, faults = _salvage(finding, blank, encode)
    if finding.baseline is not None:
        status = finding.baseline
        found["evidence"].insert(0, isolated(lambda: _checked(status.line), lambda why: f"baseline {UNKNOWN} ({why})"))
    found["evidence"] = [*found["evidence"], *faults]
    return found


def _salvage(
    record: object, blank: Mapping[str, Any], encode: Callable[[str, Any], Any]
) -> tuple[dict[str, Any], list[str]]:
    found: dict[str, Any] = {}
    faults: list[str] = []
    for name, default in blank.items():

        def part(name: str = name) -> Any:
            return _checked(encode(name, getattr(record, name)))

        def leave_out(why: str, name: str = name, default: Any = default) -> Any:
            faults.append(f"{name} {UNKNOWN} ({why})")
            return plain(default)

        if name != "findings":
            found[name] = isolated(part, leave_out)
    return found, faults


def _checked(value: Any) -> Any:
    value = plain(value)
    json.dumps(value, allow_nan=False)
    return value

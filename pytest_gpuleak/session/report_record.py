"""Attach a test's record to its teardown's report, and set the report's text and the properties that JUnit's XML has of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.outcomes import TestRecord, decode_test, encode_test
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    import pytest

    from pytest_gpuleak.model.findings import Finding, FixtureRecord


RECORD_ATTRIBUTE = "gpu_leak"
"""The attribute of a teardown's report that carries the test's record; xdist sends it along."""

AGAIN_ATTRIBUTE = "gpu_leak_again"
"""The attribute of a teardown's report whose test has leaked and was counted in an earlier attempt."""

HUNG_ATTRIBUTE = "gpu_leak_hung"
"""The attribute of the report of a test whose check hung and ended its process."""


def encode_safely(record: TestRecord | FixtureRecord) -> dict[str, Any]:
    """Encode a record; if a fault has corrupted it, what can be written, and a line on what cannot."""
    if isinstance(record, TestRecord) and not record.findings:
        return encode_test(record)  # a run without a leak needs no other module for it
    from pytest_gpuleak.model.isolation import isolated
    from pytest_gpuleak.model.records import encode

    def salvaged(why: str) -> dict[str, Any]:
        from pytest_gpuleak.reports.json.write import salvage_record

        return salvage_record(record, why)

    return isolated(lambda: encode(record), salvaged)


def attach(report: pytest.TestReport, record: TestRecord) -> None:
    """Put a test's record into its teardown's report, as plain data."""
    setattr(report, RECORD_ATTRIBUTE, encode_safely(record))


def verdict_of(report: pytest.TestReport) -> str | None:
    """Return the verdict of the record that a report carries, if it carries one."""
    record: TestRecord | dict[str, Any] | None = getattr(report, RECORD_ATTRIBUTE, None)
    if record is None:
        return None
    return record.verdict if isinstance(record, TestRecord) else str(record["verdict"])


def amend(report: pytest.TestReport, finding: Finding | None, **fields: Any) -> None:
    """Change fields of the record that a report carries, if it carries one, and add a finding to it."""
    from pytest_gpuleak.model.finding_codec import encode

    record: TestRecord | dict[str, Any] | None = getattr(report, RECORD_ATTRIBUTE, None)
    added = () if finding is None else (finding,)
    if isinstance(record, TestRecord):
        setattr(report, RECORD_ATTRIBUTE, record._replace(findings=(*record.findings, *added), **fields))
    elif record is not None:
        encoded = {name: encode(value) for name, value in fields.items()}
        record.update(findings=[*record["findings"], *encode(added)], **encoded)


def fail(report: pytest.TestReport) -> None:
    """Turn the report of a test that leaked into a failed report."""
    from pytest_gpuleak.model.isolation import isolated

    record: dict[str, Any] = getattr(report, RECORD_ATTRIBUTE)
    report.outcome = "failed"
    report.longrepr = isolated(
        lambda: describe_failure(decode_test(record).findings),
        lambda why: f"GPU LEAK\nwhat leaked cannot be shown: {why}",
    )


def note_properties(report: pytest.TestReport, record: TestRecord) -> None:
    """Add the findings to JUnit's properties."""
    if record.findings:
        from pytest_gpuleak.model.isolation import isolated

        report.user_properties += isolated(
            lambda: properties_of(record), lambda _: [("gpu_leak_verdict", record.verdict)]
        )


def describe_failure(findings: tuple[Finding, ...]) -> str:
    """Return the text for JUnit and for the other places where pytest shows a failed report."""
    from pytest_gpuleak.model.isolation import isolated
    from pytest_gpuleak.reports.source_places import name_unshown
    from pytest_gpuleak.reports.terminal.findings import render_short

    return "GPU LEAK\n" + "\n\n".join(
        isolated(partial(render_short, found), partial(name_unshown, found)) for found in findings if found.failed
    )


MAX_LISTED = 10
"""Findings of a test whose holder and fingerprint are listed."""

_TEXT_LIMIT = 300


def properties_of(record: TestRecord) -> list[tuple[str, str]]:
    """Return a test's verdict and bytes, then holder and fingerprint of each leak that fails, is known or allowed.

    Other tests get none: strict xunit2 readers reject properties of tests.
    """
    told = [found for found in record.findings if found.failed or found.known or record.verdict == "allowed"]
    if not told:
        return []
    properties = [("gpu_leak_verdict", record.verdict), ("gpu_leak_bytes", str(sum(found.bytes for found in told)))]
    for found in told[:MAX_LISTED]:
        holder = "unknown" if found.holder is None else found.holder.text or found.holder.root or found.holder.kind
        properties.append(("gpu_leak_holder", clean_text(holder, _TEXT_LIMIT)))
        if found.process is not None:
            properties.append(("gpu_leak_process", clean_text(found.process.text, _TEXT_LIMIT)))
        properties.append(("gpu_leak_fingerprint", clean_text(found.fingerprint, _TEXT_LIMIT)))
    return properties

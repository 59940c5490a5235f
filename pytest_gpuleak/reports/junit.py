"""Properties of a test in the XML of pytest's ``--junitxml``; they travel with the report of the test's teardown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import TestRecord

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

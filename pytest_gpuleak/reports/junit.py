"""Properties of a test in JUnit's XML: what a finding is, for tools that read nothing else.

pytest's own ``--junitxml`` writes them: they travel with the report of the test's teardown, also from xdist's workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import TestRecord

MAX_LISTED = 10
"""Findings of a test whose holder and fingerprint are listed."""

_TEXT_LIMIT = 300


def properties_of(record: TestRecord) -> list[tuple[str, str]]:
    """Name and value of a test's properties; none for a test that leaked nothing worth failing.

    ``gpu_leak_verdict`` and ``gpu_leak_bytes`` (of all its leaks) stand once, ``gpu_leak_holder`` and
    ``gpu_leak_fingerprint`` once a leak, in the same order. A mere note gets none: xunit2, taken strictly, knows no
    properties of a test, and a run in which nothing is wrong should stay readable for whoever does.
    """
    told = [found for found in record.findings if found.failed or found.known or record.verdict == "allowed"]
    if not told:
        return []
    properties = [
        ("gpu_leak_verdict", record.verdict),
        ("gpu_leak_bytes", str(sum(found.bytes for found in told))),
    ]
    for found in told[:MAX_LISTED]:
        holder = "unknown" if found.holder is None else found.holder.text or found.holder.root or found.holder.kind
        properties.append(("gpu_leak_holder", clean_text(holder, _TEXT_LIMIT)))
        properties.append(("gpu_leak_fingerprint", clean_text(found.fingerprint, _TEXT_LIMIT)))
    return properties

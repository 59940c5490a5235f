"""What an agent has found, as a finding of the run's test."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from pytest_gpuleak.model.findings import Finding
from pytest_gpuleak.model.fingerprint import FINGERPRINT_DIGITS, digest_of
from pytest_gpuleak.reports.json.validate import check

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import HelperProcess


def read_finding(data: object, process: HelperProcess) -> Finding:
    """Return a finding made in a helper process. Raises ValueError for what is none.

    Only what grows with each run fails: what a server keeps once is its cache, and what it replaces is its state.
    """
    found: Finding = check(Finding, data, "finding")
    grows = found.kind == "growing" or found.bytes_per_run > 0
    return dataclasses.replace(
        found,
        failed=found.failed and grows,
        known=False,
        baseline=None,
        fingerprint=_fingerprint(found.fingerprint, process),
        process=process,
    )


def _fingerprint(digest: str, process: HelperProcess) -> str:
    """Return a fingerprint that tells the test's own leak from a helper's, without pids and other numbers."""
    who = process.fixture or re.sub(r"\d+", "#", process.name)
    return digest_of(digest, "process", who, digits=FINGERPRINT_DIGITS)

"""Reports made of plain values: one leak of each sort, and whatever hypothesis comes up with."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pytest_gpuleak.model.findings import ArrayInfo, Finding, FixtureRecord, Holder, PathStep
from pytest_gpuleak.model.records import RunReport, TestRecord
from pytest_gpuleak.model.source_files import Origin

MIB = 1024 * 1024


class Make:
    """Makes records, with a default for all that a test does not care about."""

    @staticmethod
    def finding(**changes: Any) -> Finding:
        finding = Finding(
            kind="growing",
            failed=True,
            device="cuda:0",
            count=1,
            bytes=4 * MIB,
            bytes_per_run=4 * MIB,
            fingerprint="00aa",
            tensors=(
                ArrayInfo(
                    shape=(1024, 1024),
                    dtype="float32",
                    device="cuda:0",
                    bytes=4 * MIB,
                    storage_bytes=4 * MIB,
                    created=Origin("app/model.py", 14, "forward", "self.meter.update(y.detach())"),
                ),
            ),
            holder=Holder("module", "app.metrics.HISTORY", "app.metrics.HISTORY[0]", (PathStep("[0]", "list"),)),
        )
        return dataclasses.replace(finding, **changes)

    @staticmethod
    def test(nodeid: str, *findings: Finding, **changes: Any) -> TestRecord:
        leaked = any(finding.failed for finding in findings)
        record = TestRecord(
            nodeid=nodeid,
            verdict="leaked" if leaked else "noted" if findings else "clean",
            why_unchecked=None,
            outcome="passed",
            worker="main",
            duration_s=0.5,
            overhead_s=0.00002,
            findings=findings,
        )
        return record._replace(**changes)

    @staticmethod
    def report(*tests: TestRecord, fixtures: tuple[FixtureRecord, ...] = (), **changes: Any) -> RunReport:
        report = RunReport(
            created="2026-11-20T19:17:00+00:00",
            environment={"python": "3.11.7", "platform": "Linux", "pytest": "9.2.0", "torch": None, "devices": []},
            policy={
                "growing_tensors": 0,
                "growing_bytes": None,
                "retained_bytes": MIB,
                "confirm": 1,
                "confirm_limit_s": 60.0,
                "cycles": "note",
                "scan": "epoch",
            },
            summary={
                "tests": len(tests),
                **{
                    verdict: sum(test.verdict == verdict for test in tests)
                    for verdict in ("clean", "leaked", "noted", "allowed", "unchecked")
                },
                "fixtures_leaked": len(fixtures),
                "overhead_s": 0.1,
                "overhead_per_test_us": 21.4,
            },
            tests=tests,
            fixtures=fixtures,
        )
        return dataclasses.replace(report, **changes)


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make

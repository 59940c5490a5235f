"""The session's account: what was found, test by test, in this process or in its xdist workers."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

from pytest_gpuleak.findings import FixtureRecord, RunReport, TestRecord
from pytest_gpuleak.policy import Settings, describe
from pytest_gpuleak.usage import describe_usage


class Ledger:
    """Collects records and renders nothing."""

    def __init__(self) -> None:
        self.tests: list[TestRecord] = []
        self.fixtures: list[FixtureRecord] = []

    def add_test(self, record: TestRecord) -> None:
        """One attempt of one test has ended."""
        self.tests.append(record)

    def add_fixture(self, record: FixtureRecord) -> None:
        """A fixture did not let go."""
        self.fixtures.append(record)

    @property
    def fixture_leaked(self) -> bool:
        """Whether a fixture's finding fails the run."""
        return any(found.failed for record in self.fixtures for found in record.findings)

    def report(self, settings: Settings, mode: str, *, on_file: bool) -> RunReport:
        """The whole run, for the reports.

        Args:
            settings: what the run was asked for.
            mode: the strategy, as the header states it.
            on_file: whether it is to be kept: a terminal shows no environment, and asking for it takes milliseconds.
        """
        return RunReport(
            created=now() if on_file else "",
            environment=environment() if on_file else {},
            policy={**describe(settings), "strategy": mode},
            summary={**self._summary(), "memory": describe_usage(self.tests, settings.top)},
            tests=tuple(self.tests),
            fixtures=tuple(self.fixtures),
        )

    def _summary(self) -> dict[str, Any]:
        verdicts = Counter(record.verdict for record in self.tests)
        overhead = sum(record.overhead_s for record in self.tests)
        clean = sorted(record.overhead_s for record in self.tests if not record.findings)
        return {
            "tests": len(self.tests),
            **{verdict: verdicts[verdict] for verdict in ("clean", "leaked", "noted", "allowed", "unchecked")},
            "fixtures_leaked": sum(any(found.failed for found in record.findings) for record in self.fixtures),
            "findings": sum(len(test.findings) for test in self.tests)
            + sum(len(one.findings) for one in self.fixtures),
            "overhead_s": overhead,
            # Suspects are run again, which is work and no overhead: what a clean test pays is the median of those.
            "overhead_per_test_us": clean[len(clean) // 2] * 1e6 if clean else None,
            "duration_s": sum(record.duration_s for record in self.tests),
        }


def now() -> str:
    """The time, as ISO 8601 with its offset."""
    import datetime

    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def environment() -> dict[str, Any]:
    """What the figures were measured on; asks torch nothing unless the tests have imported it."""
    import platform

    torch: Any = sys.modules.get("torch")
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "pytest": pytest.__version__,
        "torch": str(getattr(torch, "__version__", "")) or None,
        "devices": _devices(torch),
    }


def _devices(torch: Any) -> list[str]:
    """Names of the devices that this process has initialised; none is initialised for the asking."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        return []
    return [f"cuda:{index} {cuda.get_device_name(index)}" for index in range(cuda.device_count())]

"""Compare two reports of a suite. A leak is the same where test (or fixture), device and fingerprint are equal."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.baseline.matching import verdict_of
from pytest_gpuleak.cli.merge import merge_reports
from pytest_gpuleak.model.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.records import RunReport, TestRecord

TOLERANCE = 0.1
"""Share of its size by which a leak may change and still count as unchanged."""


@dataclasses.dataclass(frozen=True)
class Leak:
    """A leak as one of the reports has it."""

    place: str
    finding: Finding
    bytes: int


@dataclasses.dataclass(frozen=True)
class Change:
    """A leak whose size differs between the reports."""

    old: Leak
    new: Leak


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Changes beyond the tolerance; `verdicts` has nodeid, old and new verdict. `gone` leaks were checked again."""

    new: tuple[Leak, ...]
    grown: tuple[Change, ...]
    shrunk: tuple[Change, ...]
    gone: tuple[Leak, ...]
    unseen: tuple[Leak, ...]
    verdicts: tuple[tuple[str, str, str], ...]
    added: int
    removed: int

    @property
    def is_worse(self) -> bool:
        """Tell whether any leak is new or has grown."""
        return bool(self.new or self.grown)


def compare_reports(old: RunReport, new: RunReport, tolerance: float = TOLERANCE) -> Comparison:
    """Compare two reports, with a test's attempts merged. Sizes may differ by the share `tolerance` of the old size."""
    old, new = merge_reports([old]), merge_reports([new])
    before, after = _leaks(old), _leaks(new)
    verdicts_before = {test.nodeid: test.verdict for test in old.tests}
    verdicts_after = {test.nodeid: test.verdict for test in new.tests}
    gone: list[Leak] = []
    unseen: list[Leak] = []
    for key, leak in before.items():
        if key not in after:
            told = leak.place not in verdicts_before or verdicts_after.get(leak.place, "unchecked") != "unchecked"
            (gone if told else unseen).append(leak)
    both = [Change(before[key], leak) for key, leak in after.items() if key in before]
    return Comparison(
        new=_largest(leak for key, leak in after.items() if key not in before),
        grown=tuple(change for change in both if change.new.bytes > change.old.bytes * (1 + tolerance)),
        shrunk=tuple(change for change in both if change.new.bytes < change.old.bytes * (1 - tolerance)),
        gone=_largest(gone),
        unseen=_largest(unseen),
        verdicts=tuple(
            (nodeid, verdicts_before[nodeid], verdict)
            for nodeid, verdict in verdicts_after.items()
            if verdicts_before.get(nodeid, verdict) != verdict
        ),
        added=len(verdicts_after.keys() - verdicts_before.keys()),
        removed=len(verdicts_before.keys() - verdicts_after.keys()),
    )


def keep_leak(report: RunReport, digits: str) -> RunReport:
    """Reduce a report to one leak; verdicts and counts follow from it."""
    tests, fixtures = _keep(report, lambda found: found.fingerprint.startswith(digits))
    judged = tuple(test._replace(verdict=verdict_of(test)) for test in tests)
    summary = {**report.summary, **summarise(judged, fixtures)}
    return dataclasses.replace(report, tests=judged, fixtures=fixtures, stale=(), summary=summary)


def keep_failing(report: RunReport) -> RunReport:
    """Reduce a report to what fails, and to the tests and fixtures that it is of; the counts stay the run's."""
    tests, fixtures = _keep(report, lambda found: found.failed)
    return dataclasses.replace(report, tests=tuple(test for test in tests if test.findings), fixtures=fixtures)


def _keep(report: RunReport, is_kept: Callable[[Finding], bool]) -> tuple[list[TestRecord], tuple[FixtureRecord, ...]]:
    """Return the tests with such findings alone, and the fixtures that have one."""
    tests = [test._replace(findings=tuple(filter(is_kept, test.findings))) for test in report.tests]
    fixtures = (dataclasses.replace(one, findings=tuple(filter(is_kept, one.findings))) for one in report.fixtures)
    return tests, tuple(fixture for fixture in fixtures if fixture.findings)


def _name_fixture(record: FixtureRecord) -> str:
    place = f", {record.baseid}" if record.baseid else ""
    return f"fixture '{record.name}' ({record.scope} scope{place})"


def _leaks(report: RunReport) -> dict[tuple[str, str, str], Leak]:
    leaks: dict[tuple[str, str, str], Leak] = {}
    for place, record in _records(report):
        for finding in record.findings:
            if finding.failed or finding.known:
                key = (place, finding.device, finding.fingerprint)
                other = leaks.get(key)
                if other is None:
                    leaks[key] = Leak(place, finding, finding.bytes)
                else:
                    largest = max(other.finding, finding, key=lambda one: one.bytes)
                    leaks[key] = Leak(place, largest, other.bytes + finding.bytes)
    return leaks


def _records(report: RunReport) -> Iterator[tuple[str, TestRecord | FixtureRecord]]:
    for test in report.tests:
        yield test.nodeid, test
    for fixture in report.fixtures:
        yield _name_fixture(fixture), fixture


def _largest(leaks: Iterable[Leak]) -> tuple[Leak, ...]:
    return tuple(sorted(leaks, key=lambda leak: (-leak.bytes, leak.place)))

"""Merge reports. The gravest verdict of a test counts, and findings are united: a retry does not clear a leak."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections import Counter, defaultdict
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.baseline.file import key_of
from pytest_gpuleak.baseline.matching import entry_place
from pytest_gpuleak.model.records import RunReport
from pytest_gpuleak.model.summary import ProcessFacts, count_known, summarise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.model.findings import Finding, FixtureRecord, KnownLeak
    from pytest_gpuleak.model.records import TestRecord, Verdict

GRAVITY: dict[Verdict, int] = {"unchecked": 0, "clean": 1, "noted": 2, "allowed": 3, "leaked": 4}
"""The verdicts, gravest last."""

DIFFERING = "differing"
"""Key of `environment` and `policy` that lists what the merged reports disagree on."""

_ADDED_UP = ("budgets_unchecked", "rerun", "would_fail")
"""Counts of a summary that do not follow from the records, and are added up."""


def merge_reports(reports: Iterable[RunReport]) -> RunReport:
    """Merge reports, earlier ones first, into one record a test."""
    merger = Merger()
    for number, report in enumerate(reports, 1):
        merger.add(report, f"report {number}")
    return merger.report()


class Merger:
    """Merge reports one at a time."""

    def __init__(self) -> None:
        self._tests: dict[str, TestRecord] = {}
        self._fixtures: dict[tuple[str, str, str], FixtureRecord] = {}
        self._stale = _Stale()
        self._environment, self._policy = _Agreement(), _Agreement()
        self._usage = _Usage()
        self._counts: Counter[str] = Counter()
        self._facts = ProcessFacts()
        self._created: list[str] = []
        self._incomplete: list[str] = []
        self._faults: dict[str, None] = {}

    def add(self, report: RunReport, name: str) -> None:
        """Add a report, later than those before it."""
        for test in report.tests:
            earlier = self._tests.get(test.nodeid)
            self._tests[test.nodeid] = test if earlier is None else _merge_tests(earlier, test)
        for fixture in report.fixtures:
            place = (fixture.name, fixture.scope, fixture.baseid)
            other = self._fixtures.get(place)
            self._fixtures[place] = _merge_fixtures(fixture if other is None else other, fixture)
        self._stale.add(report)
        self._environment.add(report.environment)
        self._policy.add(report.policy)
        self._usage.add(report.summary.get("memory") or {})
        self._counts.update({key: count for key in _ADDED_UP if isinstance(count := report.summary.get(key), int)})
        self._facts.add(report.summary)
        self._created.append(report.created)
        self._faults.update(dict.fromkeys(report.faults))
        if report.incomplete is not None:
            self._incomplete.append(f"{name}: {report.incomplete}")

    def report(self) -> RunReport:
        """Return the merged report."""
        tests, fixtures, stale = tuple(self._tests.values()), tuple(self._fixtures.values()), self._stale.settle()
        summary = {**summarise(tests, fixtures), **self._counts, **self._facts.encode(), "memory": self._usage.settle()}
        if self._stale.judged:
            summary["known"] = count_known(tests, fixtures)
            summary["stale"] = len(stale)
        return RunReport(
            created=max(self._created, key=_moment, default=""),
            environment=self._environment.settle(join=True),
            policy=self._policy.settle(join=False),
            summary=summary,
            tests=tests,
            fixtures=fixtures,
            stale=stale,
            incomplete="; ".join(self._incomplete) or None,
            faults=tuple(self._faults),
        )


def _merge_tests(earlier: TestRecord, later: TestRecord) -> TestRecord:
    """Merge two records of one test. Findings of unchecked attempts count only if both are unchecked."""
    gravest = later if GRAVITY[later.verdict] >= GRAVITY[earlier.verdict] else earlier
    gravest = gravest._replace(peak=gravest.peak or later.peak or earlier.peak)
    if (earlier.verdict == "unchecked") != (later.verdict == "unchecked"):
        return gravest
    return gravest._replace(findings=_unite_findings(earlier.findings, later.findings))


def _merge_fixtures(earlier: FixtureRecord, later: FixtureRecord) -> FixtureRecord:
    if earlier is later:
        return later
    findings = _unite_findings(earlier.findings, later.findings)
    failed = any(finding.failed for finding in findings)
    return dataclasses.replace(later, findings=findings, allowed=None if failed else later.allowed or earlier.allowed)


def _unite_findings(earlier: Sequence[Finding], later: Sequence[Finding]) -> tuple[Finding, ...]:
    """Unite findings of equal kind, device and fingerprint, by rank: the graver counts, of equal ones the larger."""
    groups: dict[tuple[str, str, str], tuple[list[Finding], list[Finding]]] = defaultdict(lambda: ([], []))
    for side, findings in enumerate((earlier, later)):
        for finding in findings:
            groups[finding.kind, finding.device, finding.fingerprint][side].append(finding)
    united: list[Finding] = []
    for old, new in groups.values():
        united += _unite(old, new) if old and new else old + new
    return tuple(sorted(united, key=lambda finding: (not finding.failed, -finding.bytes)))


def _unite(old: list[Finding], new: list[Finding]) -> list[Finding]:
    pairs = zip_longest(*(sorted(side, key=_rank, reverse=True) for side in (old, new)))
    return [max((one for one in (later, earlier) if one is not None), key=_rank) for earlier, later in pairs]


def _rank(finding: Finding) -> tuple[bool, bool, int]:
    """Order findings totally, so that the result does not depend on how reports are grouped."""
    return finding.failed, finding.known, finding.bytes


def _moment(text: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)


class _Stale:
    """Entries that some report calls stale and no report contradicts that has checked a test of their function."""

    def __init__(self) -> None:
        self.judged = False
        """Whether any report counts stale entries."""
        self._entries: dict[tuple[str, ...], KnownLeak] = {}
        self._checked: Counter[str] = Counter()  # by test function: the reports that checked it
        self._agreed: Counter[tuple[str, ...]] = Counter()  # by entry: the reports that call it stale
        self._found: set[tuple[str, str | None, str]] = set()
        self._known: set[str] = set()

    def add(self, report: RunReport) -> None:
        records: tuple[TestRecord | FixtureRecord, ...] = (*report.tests, *report.fixtures)
        for record in records:
            for finding in record.findings:
                self._found.add((*entry_place(record), finding.fingerprint))
                if finding.known:
                    self._known.add(finding.fingerprint)
        if "stale" not in report.summary and not report.stale:
            return
        self.judged = True
        checked = {entry_place(test)[0] for test in report.tests if test.verdict != "unchecked"}
        self._checked.update(checked)
        for entry in report.stale:
            self._entries[key_of(entry)] = entry
            self._agreed[key_of(entry)] += entry.test in checked

    def settle(self) -> tuple[KnownLeak, ...]:
        return tuple(
            entry
            for key, entry in self._entries.items()
            if (entry.test, entry.fixture, entry.fingerprint) not in self._found
            and entry.fingerprint not in self._known
            and (entry.fixture is not None or self._checked[entry.test] == self._agreed[key])
        )


class _Agreement:
    """Values of reports under the same keys: what they agree on, and what differs."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, Any]] = {}  # by key: each value by its text, as many as there may be

    def add(self, said: Mapping[str, Any]) -> None:
        listed = said.get(DIFFERING)
        differing = listed if isinstance(listed, dict) else {}  # from an earlier merge
        for key, value in said.items():
            if key != DIFFERING and key not in differing:
                self._note(key, value)
        for key, values in differing.items():
            for value in values if isinstance(values, list) else ():
                self._note(key, value)

    def _note(self, key: str, value: Any) -> None:
        self._values.setdefault(key, {}).setdefault(_text_of(value), value)

    def settle(self, *, join: bool) -> dict[str, Any]:
        settled: dict[str, Any] = {}
        for key, by_text in self._values.items():
            values = list(by_text.values())
            texts = [value for value in values if isinstance(value, str)]
            lists = [value for value in values if isinstance(value, list)]
            if join and len(texts) > 1:
                settled[key] = ", ".join(texts)
            elif join and len(lists) == len(values):
                settled[key] = _distinct(item for items in lists for item in items)
            else:
                settled[key] = next((value for value in values if value is not None), None) if join else values[0]
        differing = {key: list(values.values()) for key, values in self._values.items() if len(values) > 1}
        return {**settled, DIFFERING: differing} if differing else settled


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: dict[str, Any] = {}
    for value in values:
        found.setdefault(_text_of(value), value)
    return list(found.values())


def _text_of(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


class _Usage:
    """Memory of several runs: drift is added up, the highest peak and the heaviest tests are kept."""

    def __init__(self) -> None:
        self._drift: dict[str, dict[str, int]] = {}
        self._peaks: dict[str, int] = {}
        self._heaviest: dict[str, dict[str, Any]] = {}
        self._shown = 0

    def add(self, usage: Mapping[str, Any]) -> None:
        for device, counters in usage.get("drift", {}).items():
            sums = self._drift.setdefault(device, {})
            for metric, size in counters.items():
                sums[metric] = sums.get(metric, 0) + size
        for device, peak in usage.get("peaks", {}).items():
            self._peaks[device] = max(self._peaks.get(device, peak), peak)
        heaviest = usage.get("heaviest", ())
        self._shown = max(self._shown, len(heaviest))
        for entry in heaviest:
            known = self._heaviest.get(entry["nodeid"])
            if known is None or entry["bytes"] > known["bytes"]:
                self._heaviest[entry["nodeid"]] = entry

    def settle(self) -> dict[str, Any]:
        if not self._drift:
            return {}
        heaviest = sorted(self._heaviest.values(), key=lambda entry: (-entry["bytes"], entry["nodeid"]))
        return {"drift": self._drift, "peaks": self._peaks, "heaviest": heaviest[: self._shown]}

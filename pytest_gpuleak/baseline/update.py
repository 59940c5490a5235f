"""Judge a run by a baseline, find stale entries, and compute the next baseline."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.baseline.file import Baseline, Key, key_of, sort_key
from pytest_gpuleak.baseline.matching import (
    MAX_TEXT,
    ROAMING,
    SEVERITY,
    Judge,
    device_type,
    entry_place,
    is_recorded,
    verdict_of,
)
from pytest_gpuleak.baseline.toml_file import MAX_BYTES
from pytest_gpuleak.model.findings import BaselineChange, Finding, KnownLeak
from pytest_gpuleak.model.summary import count_known, summarise
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpuleak.model.findings import FixtureRecord
    from pytest_gpuleak.model.records import RunReport, TestRecord


class Seen(NamedTuple):
    """What a run knows about tests beyond its report: ids, as in entries.

    Tests that are `gone` from a file that was collected whole, tests of which some parameters did not run (`partial`),
    and the higher-scoped `fixtures` that were set up and torn down, each as its place and name.
    """

    gone: frozenset[str] = frozenset()
    partial: frozenset[str] = frozenset()
    fixtures: frozenset[tuple[str, str]] = frozenset()


def apply_baseline(report: RunReport, baseline: Baseline, seen: Seen | None = None) -> RunReport:
    """Judge a run by a baseline, whatever an earlier baseline has marked.

    An entry is stale if no finding matches and every test of its function that ran was checked in its last attempt, or
    its file was collected without it. Without `seen`, other entries stay stale if the report says so.
    """
    judge = Judge(baseline)
    tests = tuple(_settled_test(record, judge) for record in report.tests)
    fixtures = tuple(_settled_fixture(record, judge) for record in report.fixtures)
    judged = dataclasses.replace(report, tests=tests, fixtures=fixtures)
    stale = _stale(judged, judge, seen)
    return dataclasses.replace(judged, stale=stale, summary={**report.summary, **_counts(judged, len(stale))})


def update_baseline(old: Baseline, report: RunReport, seen: Seen | None = None) -> tuple[Baseline, BaselineChange]:
    """Compute the baseline after a run that the caller trusts, and what changed.

    Findings that failed or were known are added unless listed; stale entries are removed; an entry whose leak differs
    by more than the tolerance gets the new size. All else stays, so an unchanged run gives the same baseline. Allowed
    leaks, unchecked tests and budgets are not recorded.
    """
    judge = Judge(old)
    stale = set(map(key_of, _stale(report, judge, seen)))
    sizes: dict[Key, Counter[tuple[object, str]]] = defaultdict(Counter)
    confirmed: dict[Key, Finding] = {}
    # Sorted, so that the file does not depend on the order of the tests. Confirmed findings come first.
    for finding, test, fixture, record, worker in sorted(_recorded(report), key=_order):
        entry, reason = judge.find_for_update(finding, test, fixture)
        if entry is None:
            entry = _entry_of(finding, test, fixture, reason)
            judge.add(entry)
        elif entry.kind == "unconfirmed" and finding.kind in ("growing", "retained"):
            confirmed.setdefault(key_of(entry), finding)
        # The order of the tests decides how much of a cache each fills, so sizes are summed per process.
        share: object = worker if entry.kind == "retained" and entry.fixture is None else record
        sizes[key_of(entry)][share, finding.device] += finding.bytes
    before = {key_of(entry): entry for entry in old.entries}
    added: list[KnownLeak] = []
    removed: list[KnownLeak] = []
    changed: list[tuple[KnownLeak, KnownLeak]] = []
    kept: list[KnownLeak] = []
    whole = _whole_functions(report, seen)
    for key, entry in judge.entries.items():
        size = min(max(sizes[key].values(), default=entry.bytes), MAX_BYTES)
        if key not in before:
            added.append(dataclasses.replace(entry, bytes=size))
        elif key in stale:
            removed.append(entry)
        else:
            now = entry
            if size > old.limit(entry) or (
                _may_shrink(entry, whole) and old.limit(dataclasses.replace(entry, bytes=size)) < entry.bytes
            ):
                now = dataclasses.replace(now, bytes=size)
            if key in confirmed:
                now = _confirmed(now, confirmed[key], judge)
            if now == entry:
                kept.append(entry)
            else:
                changed.append((now, entry))
    changed.sort(key=lambda pair: sort_key(pair[0]))
    change = BaselineChange(
        added=tuple(sorted(added, key=sort_key)),
        removed=tuple(sorted(removed, key=sort_key)),
        changed=tuple(now for now, _ in changed),
        kept=tuple(sorted(kept, key=sort_key)),
        before=tuple(entry for _, entry in changed),
    )
    entries = sorted([*change.added, *change.changed, *change.kept], key=sort_key)
    return dataclasses.replace(old, entries=tuple(entries)), change


def _order(recorded: tuple[Finding, str, str | None, int, str]) -> tuple[int, str, str, str, str, str]:
    """Sort by all that an entry takes from the first of its findings: `layer1` and `layer2` have one fingerprint."""
    finding, test, fixture, _, _ = recorded
    return SEVERITY.get(finding.kind, 3), test, fixture or "", finding.device, finding.kind, _holder_of(finding)


def _holder_of(finding: Finding) -> str:
    holder = finding.holder
    return "" if holder is None else clean_text(holder.root or holder.text, MAX_TEXT)


def _recorded(report: RunReport) -> Iterator[tuple[Finding, str, str | None, int, str]]:
    records: list[TestRecord | FixtureRecord] = [*_judged_tests(report), *report.fixtures]
    for index, record in enumerate(records):
        if record.allowed is None:
            for finding in record.findings:
                if is_recorded(finding):
                    yield finding, *entry_place(record), index, record.worker


def _judged_tests(report: RunReport) -> Iterable[TestRecord]:
    return (record for record in report.tests if record.verdict not in ("unchecked", "allowed"))


def _entry_of(finding: Finding, test: str, fixture: str | None, reason: str) -> KnownLeak:
    return KnownLeak(
        test=test,
        fixture=fixture,
        kind=finding.kind,
        device=device_type(finding.device),
        bytes=0,
        fingerprint=finding.fingerprint,
        holder=_holder_of(finding),
        reason=reason,
    )


def _may_shrink(entry: KnownLeak, whole: frozenset[str]) -> bool:
    """Tell whether a smaller finding means a smaller leak. A roaming leak may have been left by another test."""
    return entry.fixture is None and entry.kind not in ROAMING and entry.test in whole


def _confirmed(entry: KnownLeak, finding: Finding, judge: Judge) -> KnownLeak:
    now = dataclasses.replace(entry, kind=finding.kind, fingerprint=finding.fingerprint)
    return entry if key_of(now) in judge.entries else now


def _settled_test(record: TestRecord, judge: Judge) -> TestRecord:
    if not record.findings or record.verdict in ("unchecked", "allowed"):
        return record
    record = record._replace(findings=judge.settle(record.findings, *entry_place(record)))
    return record._replace(verdict=verdict_of(record))


def _settled_fixture(record: FixtureRecord, judge: Judge) -> FixtureRecord:
    if record.allowed is not None:
        return record
    return dataclasses.replace(record, findings=judge.settle(record.findings, *entry_place(record)))


def _stale(report: RunReport, judge: Judge, seen: Seen | None) -> tuple[KnownLeak, ...]:
    records: list[TestRecord | FixtureRecord] = [*_judged_tests(report), *report.fixtures]
    checked = (record for record in records if record.allowed is None)
    matched = judge.find_all((finding, *entry_place(record)) for record in checked for finding in record.findings)
    whole = _whole_functions(report, seen)
    before = set(map(key_of, report.stale)) if seen is None else set()
    unseen_kinds = _unseen_kinds(report)

    def is_gone(entry: KnownLeak) -> bool:
        if entry.kind in unseen_kinds:
            return False
        if entry.fixture is not None:
            return seen is not None and (entry.test, entry.fixture) in seen.fixtures
        return entry.test in whole or (seen is not None and entry.test in seen.gone)

    return tuple(
        entry
        for key, entry in sorted(judge.entries.items(), key=lambda item: sort_key(item[1]))
        if key not in matched and (key in before or is_gone(entry))
    )


def _whole_functions(report: RunReport, seen: Seen | None) -> frozenset[str]:
    """Return the test functions whose every parameter ran and was checked in its last attempt."""
    last: dict[tuple[str, str], TestRecord] = {(record.nodeid, record.worker): record for record in report.tests}
    checked: dict[str, bool] = {}
    for record in last.values():
        function, _ = entry_place(record)
        checked[function] = checked.get(function, True) and record.verdict != "unchecked"
    partial = frozenset() if seen is None else seen.partial
    return frozenset(function for function, whole in checked.items() if whole and function not in partial)


def _unseen_kinds(report: RunReport) -> frozenset[str]:
    """Return the kinds that the run's policy does not look for. Their entries are not stale for being missing."""
    policy = report.policy
    kinds = set()
    if policy.get("cycles") == "ignore":
        kinds.add("cycle")
    if "host" in policy and not policy["host"]:
        kinds.add("host")
    return frozenset(kinds)


def _counts(report: RunReport, stale: int) -> dict[str, Any]:
    known = count_known(report.tests, report.fixtures)
    return {**summarise(report.tests, report.fixtures), "known": known, "stale": stale}

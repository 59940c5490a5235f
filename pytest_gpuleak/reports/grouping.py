"""Group findings whose memory one holder keeps: a report explains the holder once, with its largest finding."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.records import TestRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.model.findings import Finding, FixtureRecord, Holder

    Entry = tuple[TestRecord | FixtureRecord, Finding]

_NUMBER = re.compile(r"\d+")
_TENSOR_KINDS = ("growing", "retained", "unconfirmed")
"""Kinds that one edit at the holder removes together: the order of the tests decides which of them a test gets."""


@dataclasses.dataclass(frozen=True)
class Group:
    """The findings of one holder, at least one, the largest first; the number of their tests, and their fixtures."""

    entries: tuple[Entry, ...]
    bytes: int
    tests: int
    fixtures: tuple[FixtureRecord, ...]

    @property
    def owners(self) -> int:
        """Return the number of different tests and fixtures."""
        return self.tests + len(self.fixtures)

    @property
    def is_shared(self) -> bool:
        """Tell whether findings of several tests or fixtures have the holder."""
        return self.owners > 1


def group_findings(entries: Iterable[Entry]) -> list[Group]:
    """Group findings by holder: failing groups first, then by total size.

    Without a holder a finding stays alone, unless another attempt repeats it; cycles of a kind are one group. Failing,
    known and noted findings are kept apart, so that a sum means one thing.
    """
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for record, found in entries:
        key = (found.failed, found.known, holder_key(found) or _own_key(record, found))
        groups.setdefault(key, []).append((record, found))
    return sorted(map(group_of, groups.values()), key=lambda group: (not group.entries[0][1].failed, -group.bytes))


def group_safely(entries: Sequence[Entry]) -> list[Group]:
    """Group findings as `group_findings` does. Where that raises, each finding stays alone."""
    return isolated(lambda: group_findings(entries), lambda _: [Group((entry,), 0, 0, ()) for entry in entries])


def holder_key(finding: Finding) -> tuple[str, ...] | None:
    """Return the key that all findings of one holder on one device share; None where no holder is known.

    A holder in a helper process is another one than that of the same name here; the process may be one of several alike.
    """
    key = _holder_key(finding)
    process = finding.process
    return key if key is None or process is None else (*key, process.fixture or _NUMBER.sub("#", process.name))


def _holder_key(finding: Finding) -> tuple[str, ...] | None:
    holder = finding.holder
    if finding.kind == "cycle":
        return finding.device, "cycle", "", "", "", _ring(holder)
    # A holder in C++ has no name, so its path identifies it.
    if holder is None or not (holder.named or (holder.kind == "native" and holder.path)):
        return None
    family = "" if finding.kind in _TENSOR_KINDS and finding.metric is None else f"{finding.kind} {finding.metric}"
    path = "" if holder.named else finding.fingerprint
    return finding.device, family, holder.kind, holder.root, holder.file or "", path


def _ring(holder: Holder | None) -> str:
    if holder is None:
        return ""
    return _NUMBER.sub("#", " ".join(f"{step.type} {step.edge}" for step in holder.path) or holder.text)


def _own_key(record: TestRecord | FixtureRecord, finding: Finding) -> tuple[object, ...]:
    return (*_identity(record), finding.kind, finding.device, finding.metric, finding.fingerprint)


def _identity(record: TestRecord | FixtureRecord) -> tuple[str, ...]:
    if isinstance(record, TestRecord):
        return ("test", record.nodeid)
    return ("fixture", record.name, record.scope, record.baseid)


def group_of(found: Iterable[Entry]) -> Group:
    """Make one group of findings, at least one."""
    entries = sorted(found, key=lambda entry: -entry[1].bytes)
    different = {_identity(record): record for record, _ in reversed(entries)}
    fixtures = [record for record in different.values() if not isinstance(record, TestRecord)]
    return Group(
        tuple(entries),
        sum(found.bytes for _, found in entries),
        len(different) - len(fixtures),
        tuple(reversed(fixtures)),
    )

"""The findings as the HTML report shows them: a row each, worded and cut, and the culprits that several have in common."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuleak.findings import FixtureRecord
from pytest_gpuleak.reports.text import clean_text
from pytest_gpuleak.reports.words import HOLDER_WORDS, describe_amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.findings import ArrayInfo, Contribution, Finding, Holder, Origin
    from pytest_gpuleak.records import RunReport, TestRecord

TEXT_LIMIT = 1000
"""Characters of any one text on the page."""

ID_LIMIT = 400
"""Characters of a test id or a file name."""

STATES = ("leaked", "known", "noted", "allowed")
"""What a finding is to the reader, the worst first: it fails, a baseline lists it, it does not fail, a marker allows it."""

_ARRAYS_SHOWN = 6  # after like ones were put together; the JSON report has more
_ORIGINS_SHOWN = 4
_PARTS_SHOWN = 6
_HOLDERS_SHOWN = 4
_STEPS_SHOWN = 30
_LINES_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Step:
    """One edge of a drawn path: how it is written, what it leads to, and whether it is the one to edit."""

    edge: str
    target: str
    deciding: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """One finding as the page shows it, with what its test or fixture adds.

    Attributes:
        number: from 1, in the order of the page; the row's anchor is ``finding-<number>``.
        name: the test's id, or the fixture's name.
        about: where it stands, its worker, its scope: what follows the name.
        state: one of `STATES`.
        order: when it was found: the position of the test in the run; fixtures come last.
        what: the finding in one sentence.
        held: the holder's chain, or what is said in its place.
        held_kind: the holder's kind in words.
        holder_kind: its key, for the filter.
        place: file and line of the holder's root.
        steps: its path.
        steps_left: edges that are not shown.
        others: who else holds it, as pairs of chain and kind.
        origins: the lines that created the arrays.
        arrays: like arrays put together, with how many there are.
        arrays_left: arrays in the report that are not shown.
        also: how many other findings have the same culprit.
    """

    number: int
    is_fixture: bool
    name: str
    about: str
    state: str
    order: int
    finding: Finding
    record: TestRecord | FixtureRecord
    what: str
    held: str
    held_kind: str
    holder_kind: str
    place: str
    steps: tuple[Step, ...]
    steps_left: int
    others: tuple[tuple[str, str], ...]
    origins: tuple[Origin, ...]
    arrays: tuple[tuple[int, ArrayInfo], ...]
    arrays_left: int
    parts: tuple[Contribution, ...]
    evidence: tuple[str, ...]
    also: int


@dataclasses.dataclass(frozen=True)
class Culprit:
    """What several findings have in common: who holds the memory, on which device, and how much in all."""

    held: str
    held_kind: str
    place: str
    state: str
    device: str
    findings: int
    bytes: int
    search: str
    first: int


def state_of(finding: Finding, record: TestRecord | FixtureRecord) -> str:
    """Name what a finding is to the reader, as one of `STATES`."""
    if finding.known:
        return "known"
    if finding.failed:
        return "leaked"
    return "allowed" if record.allowed is not None else "noted"


def build_rows(report: RunReport) -> list[Row]:
    """Arrange the findings of all tests and fixtures: what fails first, within that the largest."""
    records: tuple[TestRecord | FixtureRecord, ...] = (*report.tests, *report.fixtures)
    found: list[tuple[int, TestRecord | FixtureRecord, Finding]] = [
        (order, record, finding) for order, record in enumerate(records) for finding in record.findings
    ]
    found.sort(key=lambda entry: (STATES.index(state_of(entry[2], entry[1])), -entry[2].bytes, entry[0]))
    alike = Counter(_culprit(finding) for _, _, finding in found)
    return [
        _row(number, order, record, finding, alike[_culprit(finding)] - 1)
        for number, (order, record, finding) in enumerate(found, 1)
    ]


def _row(number: int, order: int, record: TestRecord | FixtureRecord, finding: Finding, also: int) -> Row:
    holder = finding.holder
    path = () if holder is None else holder.path
    origins = list(dict.fromkeys(array.created for array in finding.tensors if array.created is not None))
    arrays = list(Counter(finding.tensors).items())
    return Row(
        number=number,
        is_fixture=isinstance(record, FixtureRecord),
        name=clean_text(record.name if isinstance(record, FixtureRecord) else record.nodeid, ID_LIMIT),
        about=_about(record),
        state=state_of(finding, record),
        order=order,
        finding=finding,
        record=record,
        what=describe_amount(finding, ID_LIMIT),
        held=_chain(holder, finding),
        held_kind="" if holder is None else HOLDER_WORDS[holder.kind],
        holder_kind="unknown" if holder is None else holder.kind,
        place=place_of(holder.file, holder.line) if holder is not None and holder.file else "",
        steps=_steps(holder, finding),
        steps_left=max(0, len(path) - _STEPS_SHOWN),
        others=tuple(
            (clean_text(other.text or other.root, TEXT_LIMIT), HOLDER_WORDS[other.kind])
            for other in finding.other_holders[:_HOLDERS_SHOWN]
        ),
        origins=tuple(origins[:_ORIGINS_SHOWN]),
        arrays=tuple((number, array) for array, number in arrays[:_ARRAYS_SHOWN]),
        arrays_left=sum(number for _, number in arrays[_ARRAYS_SHOWN:]),
        parts=finding.contributions[:_PARTS_SHOWN],
        evidence=finding.evidence[:_LINES_SHOWN],
        also=also if holder is not None and holder.named else 0,
    )


def _about(record: TestRecord | FixtureRecord) -> str:
    parts = [f"fixture, {record.scope} scope"] if isinstance(record, FixtureRecord) else []
    if record.file:
        parts.append(place_of(record.file, record.line))
    elif isinstance(record, FixtureRecord) and record.baseid:
        parts.append(clean_text(record.baseid, ID_LIMIT))
    if record.worker != "main":
        parts.append(clean_text(record.worker, ID_LIMIT))
    return ", ".join(parts)


def place_of(file: str, line: int | None) -> str:
    """Write a place as ``file:line``."""
    return clean_text(file, ID_LIMIT) + ("" if line is None else f":{line}")


def _chain(holder: Holder | None, finding: Finding) -> str:
    if holder is not None:
        return clean_text(holder.text or holder.root or "nothing that the gc module shows", TEXT_LIMIT)
    if finding.contributions:
        return clean_text(finding.contributions[0].text, TEXT_LIMIT)
    return "not searched"


def _steps(holder: Holder | None, finding: Finding) -> tuple[Step, ...]:
    if holder is None:
        return ()
    last = finding.contributions[0].text if finding.contributions else ""
    if finding.tensors:
        array = finding.tensors[0]
        last = f"tensor {array.dtype} {list(array.shape)}"
    path = holder.path
    targets = [step.type for step in path[1:]] + [last]
    return tuple(
        Step(step.edge.strip(), target, index == holder.deciding)
        for index, (step, target) in enumerate(zip(path, targets, strict=True))
    )[:_STEPS_SHOWN]


def _culprit(finding: Finding) -> tuple[str, str, str]:
    """What the findings of one culprit have in common; those that are held by nobody known need not be the same."""
    holder = finding.holder
    if holder is None or not holder.named:
        return finding.device, "", ""
    return finding.device, holder.kind, holder.root


def group_culprits(rows: Sequence[Row]) -> list[Culprit]:
    """Put the rows of one holder and device together; those that fail first, within that the largest."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(_culprit(row.finding), []).append(row)
    culprits = [
        Culprit(
            held=clean_text(root, TEXT_LIMIT) if root else "holder not known",
            held_kind=rows[0].held_kind if root else "",
            place=rows[0].place if root else "",
            state=min((row.state for row in rows), key=STATES.index),
            device=device,
            findings=len(rows),
            bytes=sum(row.finding.bytes for row in rows),
            search=clean_text(root, TEXT_LIMIT),
            first=rows[0].number,
        )
        for (device, _, root), rows in groups.items()
    ]
    return sorted(culprits, key=lambda one: (STATES.index(one.state), -one.bytes, one.first))

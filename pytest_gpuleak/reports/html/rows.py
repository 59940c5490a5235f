"""The findings as rows of the HTML report, worded and cut."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.model.findings import FixtureRecord
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports.grouping import holder_key
from pytest_gpuleak.reports.html.costs import describe_cost
from pytest_gpuleak.reports.source_places import describe_unshown
from pytest_gpuleak.reports.terminal.holders import place_of_edit
from pytest_gpuleak.reports.wording import (
    CYCLE_UNKNOWN,
    GONE,
    LINE_UNKNOWN,
    describe_amount,
    describe_end,
    describe_holder,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.findings import Finding, Holder
    from pytest_gpuleak.model.records import RunReport, TestRecord

TEXT_LIMIT = 1000
"""Longest text on the page, in characters."""

ID_LIMIT = 400
"""Longest test id or file name, in characters."""

STATES = ("leaked", "known", "noted", "allowed")
"""States of a finding, worst first: it fails, a baseline lists it, it does not fail, a marker allows it."""

_ARRAYS_SHOWN = 6  # groups of similar arrays; the JSON report has more
_ORIGINS_SHOWN = 4
_PARTS_SHOWN = 6
_HOLDERS_SHOWN = 4
_STEPS_SHOWN = 30
_LINES_SHOWN = 12


MAX_ROWS = 5_000
"""Findings on the page, the largest failing ones first. A browser takes seconds for this many."""


class Found(NamedTuple):
    """A finding with its test or fixture, its position in the run, and its state."""

    order: int
    record: TestRecord | FixtureRecord
    finding: Finding
    state: str

    @property
    def is_fixture(self) -> bool:
        """Tell whether a fixture left it."""
        return isinstance(self.record, FixtureRecord)

    @property
    def holder_kind(self) -> str:
        """Return the kind of its holder, the filter's key."""
        return "unknown" if self.finding.holder is None else self.finding.holder.kind


@dataclasses.dataclass(frozen=True)
class Step:
    """A reference of a drawn path: its text, what it leads to, whether it is the one to cut, and where that is set."""

    edge: str
    target: str
    deciding: bool
    place: str = ""


class Row(NamedTuple):
    """One finding as the page shows it: `shown` has what the template writes, or else `fault` why it cannot be shown.

    `number` is from 1, in the order of the page; the row's anchor is ``finding-<number>``.
    """

    number: int
    found: Found
    shown: dict[str, Any]
    fault: str = ""


def _state_of(finding: Finding, record: TestRecord | FixtureRecord) -> str:
    if finding.known:
        return "known"
    if finding.failed:
        return "leaked"
    return "allowed" if record.allowed is not None else "noted"


def find_all(report: RunReport) -> list[Found]:
    """List the findings of all tests and fixtures: failing ones first, then by size."""
    records: tuple[TestRecord | FixtureRecord, ...] = (*report.tests, *report.fixtures)
    found = [
        Found(order, record, finding, _state_of(finding, record))
        for order, record in enumerate(records)
        for finding in record.findings
    ]
    isolated(lambda: found.sort(key=_rank), lambda _: None)
    return found


def _rank(found: Found) -> tuple[int, int, int]:
    return STATES.index(found.state), -found.finding.bytes, found.order


def build_rows(found: Sequence[Found]) -> list[Row]:
    """Build rows for the first `MAX_ROWS` findings of `find_all`, also for those that cannot be shown."""
    groups: dict[object, list[int]] = {}
    for one in found:
        count_and_size = groups.setdefault(key_safely(one.finding), [0, 0])
        count_and_size[0] += 1
        count_and_size[1] += isolated(functools.partial(int, one.finding.bytes), lambda _: 0)
    rows = []
    for number, one in enumerate(found[:MAX_ROWS], 1):
        count, size = groups[key_safely(one.finding)]
        rows.append(
            isolated(
                functools.partial(_row, number, one, count - 1, size), functools.partial(_unshown_row, number, one)
            )
        )
    return rows


def _unshown_row(number: int, found: Found, why: str) -> Row:
    return Row(number, found, {}, describe_unshown(found.record, found.finding, why))


def _row(number: int, found: Found, also: int, total: int) -> Row:
    record, finding = found.record, found.finding
    holder = finding.holder
    path = () if holder is None else holder.path
    origins = list(dict.fromkeys(array.created for array in finding.tensors if array.created is not None))
    arrays = list(Counter(finding.tensors).items())
    others = _others(finding)
    shown = {
        "name": clean_text(record.name if isinstance(record, FixtureRecord) else record.nodeid, ID_LIMIT),
        # Place, worker and scope, after the name.
        "about": _about(record),
        "what": describe_amount(finding, ID_LIMIT),
        "held": _chain(holder, finding),
        "held_kind": "" if holder is None else describe_holder(holder),
        "place": write_place(holder.file, holder.line) if holder is not None and holder.file else "",
        # The line to edit, where it made the root: a callback's registration.
        "root_place": _place_to_edit(holder),
        "steps": _steps(holder, finding),
        "steps_left": max(0, len(path) - _STEPS_SHOWN),
        "others": others[:_HOLDERS_SHOWN],
        # Further references that read as one of these.
        "references": len(finding.other_holders) - len(others),
        "origins": tuple(origins[:_ORIGINS_SHOWN]),
        "why_no_origin": "" if origins or finding.metric is not None else _why_no_origin(finding),
        "arrays": tuple((number, array) for array, number in arrays[:_ARRAYS_SHOWN]),
        "arrays_left": sum(number for _, number in arrays[_ARRAYS_SHOWN:]),
        "parts": finding.contributions[:_PARTS_SHOWN],
        "evidence": finding.evidence_lines[:_LINES_SHOWN],
        # Other findings of the same holder, of so many bytes with this one.
        "also": 0 if holder_key(finding) is None else also,
        "total": total,
        "cost": "" if isinstance(record, FixtureRecord) else describe_cost(record),
    }
    return Row(number, found, shown)


def _why_no_origin(finding: Finding) -> str:
    return finding.why_line_unknown or ("" if finding.kind == "cycle" else LINE_UNKNOWN)


def _others(finding: Finding) -> tuple[tuple[str, str], ...]:
    def written(holder: Holder) -> tuple[str, str]:
        return clean_text(holder.text or holder.root, TEXT_LIMIT), describe_holder(holder)

    distinct = dict.fromkeys(map(written, finding.other_holders))
    if finding.holder is not None:
        distinct.pop(written(finding.holder), None)
    return tuple(distinct)


def _about(record: TestRecord | FixtureRecord) -> str:
    parts = [f"fixture, {record.scope} scope"] if isinstance(record, FixtureRecord) else []
    if record.file:
        parts.append(write_place(record.file, record.line))
    elif isinstance(record, FixtureRecord) and record.baseid:
        parts.append(clean_text(record.baseid, ID_LIMIT))
    if record.worker != "main":
        parts.append(clean_text(record.worker, ID_LIMIT))
    return ", ".join(parts)


def write_place(file: str, line: int | None) -> str:
    """Write a place as ``file:line``."""
    return clean_text(file, ID_LIMIT) + ("" if line is None else f":{line}")


def _chain(holder: Holder | None, finding: Finding) -> str:
    if holder is not None:
        return clean_text(holder.text or holder.root or "nothing that the gc module shows", TEXT_LIMIT)
    if finding.contributions:
        return clean_text(finding.contributions[0].text, TEXT_LIMIT)
    return f"a cycle, {CYCLE_UNKNOWN}" if finding.kind == "cycle" else GONE


def _steps(holder: Holder | None, finding: Finding) -> tuple[Step, ...]:
    if holder is None or not holder.path:  # the root may be the tensor itself
        return ()
    last = f"{holder.path[0].type}, the first again" if finding.kind == "cycle" else describe_end(finding)
    path = holder.path
    place = place_of_edit(holder.edit)
    targets = [step.type for step in path[1:]] + [last]
    return tuple(
        Step(step.edge.strip(": "), target, index == holder.deciding, place if index == holder.deciding else "")
        for index, (step, target) in enumerate(zip(path, targets, strict=True))
    )[:_STEPS_SHOWN]


def _place_to_edit(holder: Holder | None) -> str:
    return "" if holder is None or holder.deciding is not None else place_of_edit(holder.edit)


def key_safely(finding: Finding) -> object:
    """Return the key that findings of one holder share; a constant where it cannot be made."""
    key: object = isolated(lambda: holder_key(finding) or (finding.device, finding.kind), lambda _: "")
    return isolated(lambda: (hash(key), key)[1], lambda _: "")

"""The tree of culprits of the HTML report: file, holder, and the tests and fixtures that left memory with it, by size."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.model.text import clean_text, count_of
from pytest_gpuleak.reports.grouping import group_of, holder_key
from pytest_gpuleak.reports.html.rows import ID_LIMIT, STATES, TEXT_LIMIT, key_safely, write_place
from pytest_gpuleak.reports.source_places import name_of
from pytest_gpuleak.reports.wording import NO_HOLDER, describe_holder, describe_owners, in_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.reports.html.rows import Found

HOLDERS_SHOWN = 40
"""Holders in the tree, the largest failing ones first."""

_TESTS_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A test or fixture that left memory with a holder: its name, the size, and the number of its finding on the page."""

    name: str
    bytes: int
    number: int


@dataclasses.dataclass(frozen=True)
class Culprit:
    """A holder (its root) and what was left with it; `share` is its part of the largest branch, in percent."""

    held: str
    held_kind: str
    file: str
    place: str
    state: str
    device: str
    left_by: str
    bytes: int
    search: str
    first: int
    leaves: tuple[Leaf, ...]
    leaves_left: int
    share: float = 0.0


@dataclasses.dataclass(frozen=True)
class Branch:
    """The holders that one file defines, or a single holder; `share` is the part of the largest branch, in percent."""

    file: str
    about: str
    state: str
    bytes: int
    culprits: tuple[Culprit, ...]
    share: float

    @property
    def only(self) -> Culprit | None:
        """Return the holder, where it stands for itself."""
        return self.culprits[0] if len(self.culprits) == 1 else None


def find_culprits(found: Sequence[Found]) -> list[Culprit]:
    """Group the findings of one holder and device: failing groups first, then by size."""
    groups: dict[object, list[tuple[int, Found]]] = {}
    for number, one in enumerate(found, 1):
        groups.setdefault(key_safely(one.finding), []).append((number, one))
    return sorted(map(_culprit, groups.values()), key=lambda one: (_rank(one), one.first))


def build_tree(culprits: Sequence[Culprit]) -> list[Branch]:
    """Join the holders of one file: files and holders with failing findings first, then by size."""
    files: dict[object, list[Culprit]] = {}
    for culprit in culprits:
        files.setdefault((culprit.file, culprit.state) if culprit.file else culprit.first, []).append(culprit)
    most = max((sum(one.bytes for one in members) for members in files.values()), default=0)
    return sorted((_branch(members, most) for members in files.values()), key=_rank)


def _rank(one: Culprit | Branch) -> tuple[int, int]:
    return STATES.index(one.state), -one.bytes


def _branch(members: Sequence[Culprit], most: int) -> Branch:
    size = sum(one.bytes for one in members)
    return Branch(
        file=members[0].file,
        about=count_of(len(members), "holder"),
        state=members[0].state,
        bytes=size,
        culprits=tuple(dataclasses.replace(one, share=_share(one.bytes, most)) for one in members),
        share=_share(size, most),
    )


def _share(size: int, most: int) -> float:
    # Integers: sizes may be larger than a float.
    return max(0, min(1000, 1000 * size // most)) / 10 if most > 0 else 0.0


def _culprit(members: Sequence[tuple[int, Found]]) -> Culprit:
    first, one = members[0]
    group = group_of((one.record, one.finding) for _, one in members)
    holder = one.finding.holder
    if holder_key(one.finding) is None:
        holder = None
    held = "" if holder is None else clean_text(holder.root or holder.text, TEXT_LIMIT)
    leaves = _leaves(members)
    return Culprit(
        held=held or NO_HOLDER.get(one.finding.kind, "holder not known"),
        held_kind=("" if holder is None else describe_holder(holder)) + in_process(one.finding, whole=False),
        file="" if holder is None or not holder.file else clean_text(holder.file, ID_LIMIT),
        place=write_place(holder.file, holder.line) if holder is not None and holder.file else "",
        state=min((one.state for _, one in members), key=STATES.index),
        device=one.finding.device,
        left_by=describe_owners(group),
        bytes=group.bytes,
        search=held,
        first=first,
        leaves=tuple(leaves[:_TESTS_SHOWN]),
        leaves_left=max(0, len(leaves) - _TESTS_SHOWN),
    )


def _leaves(members: Iterable[tuple[int, Found]]) -> list[Leaf]:
    sizes: dict[str, tuple[int, int]] = {}
    for number, one in members:
        name = clean_text(name_of(one.record), ID_LIMIT)
        size, first = sizes.get(name, (0, number))
        sizes[name] = size + one.finding.bytes, first
    leaves = [Leaf(name, size, first) for name, (size, first) in sizes.items()]
    return sorted(leaves, key=lambda leaf: (-leaf.bytes, leaf.number))

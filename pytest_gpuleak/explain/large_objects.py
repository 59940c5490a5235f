"""Find new objects that take much memory, by walks over the whole heap before and after, and who holds them."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

from pytest_gpuleak.adapters.host.probes import CounterProbe
from pytest_gpuleak.adapters.probe_protocol import HostGrowth
from pytest_gpuleak.explain.edge_to_edit import omitted_edges
from pytest_gpuleak.explain.edges.lookups import Lookups
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import PausedCollector
from pytest_gpuleak.heap.walk import HeapWalk, Sizes, is_map, maps_file
from pytest_gpuleak.model.findings import Contribution, Holder, PathStep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuleak.adapters.probe_protocol import HostProbe, Recorder
    from pytest_gpuleak.explain.search import Explanation
    from pytest_gpuleak.heap.walk import Batch

MIN_BYTES: Final = 64 * 1024
"""Smallest object, or growth of an object, that is examined, in bytes."""

WALK_STEPS: Final = 50_000_000
"""Steps (`heap.budget`) of a walk over the heap: seven million containers and what they hold."""

EXPLAIN_STEPS: Final = 20_000_000
"""Steps of the search for holders."""

MAX_EXPLAINED: Final = 200
"""Objects whose holder is searched, largest first, in one search: see `heap.referrers.SCAN_FROM`."""

MAX_TRAIL: Final = 8
"""Nested untracked containers that are written at either end of a longer path."""

MAX_PARTS: Final = 10
"""Contributions that are reported."""


class LargeObjects:
    """Record the large objects of the heap by ids and sizes, and report which are new since; memory maps too if `maps`.

    The caller makes the whole heap visible (`Detector.whole_heap`) around both walks, of `WALK_STEPS` at most.
    """

    def __init__(self, *, maps: bool = False) -> None:
        self._maps = maps
        self._before: dict[int, int] | None = None

    def begin(self) -> None:
        """Record the objects that are large now as old."""
        self._before = None
        walk = HeapWalk(Budget(WALK_STEPS))
        with PausedCollector():
            sizes = {id(value): size for _, found in self._large(walk) for value, size in found}
        # A part of the heap alone would make the rest of it look new.
        self._before = sizes if walk.complete else None

    def end(self) -> tuple[Contribution, ...]:
        """Return large new objects, largest first, at most `MAX_PARTS`; none if the walk of `begin` was cut."""
        before, self._before = self._before, None
        if before is None:
            return ()
        trails: list[list[Any]] = []
        grown: dict[int, int] = {}
        with PausedCollector():
            try:
                self._note_grown(before, trails, grown)
                return _contributions(trails, grown)
            finally:
                trails.clear()  # a list that the search may have come upon: what it holds dies with its content

    def _note_grown(self, before: dict[int, int], trails: list[list[Any]], grown: dict[int, int]) -> None:
        """Fill the lists in a frame of its own, since the search may leave its callers' frames behind."""
        for batch, found in self._large(HeapWalk(Budget(WALK_STEPS))):
            new = [(value, size - before.get(id(value), 0)) for value, size in found if id(value) not in grown]
            new = [(value, more) for value, more in new if more >= MIN_BYTES]
            owners = _owners({id(value) for value, _ in new}, batch)
            for value, more in new:
                if id(value) not in grown:
                    grown[id(value)] = more
                    trails.append(_trail(value, owners.get(id(value)), batch))

    def _large(self, walk: HeapWalk) -> Iterator[tuple[Batch, list[tuple[object, int]]]]:
        sizes = Sizes(maps=self._maps)
        for batch in walk.batches():
            found = sizes.large(batch.objects, batch.type_ids, MIN_BYTES)
            if found:
                yield batch, found


class LargeObjectRecorder:
    """Explain the growth of the counter that `probe` reads by the large objects that are new."""

    def __init__(self, probe: CounterProbe) -> None:
        self._probe = probe
        self._large = LargeObjects(maps=probe.maps)
        self._before = 0

    def begin_record(self) -> None:
        """Record the large objects; the caller has made the whole heap visible."""
        self._large.begin()
        self._before = self._probe.read()

    def end_record(self) -> HostGrowth:
        """Return the counter's growth and the large objects that are new."""
        return HostGrowth(self._probe.read() - self._before, self._large.end())


def recorder_of(probe: HostProbe) -> Recorder:
    """Return the recorder of a re-run's growth: the probe itself, or for a counter a recorder of large objects."""
    return LargeObjectRecorder(probe) if isinstance(probe, CounterProbe) else cast("Recorder", probe)


def _owners(wanted: set[int], batch: Batch) -> dict[int, int]:
    found: dict[int, int] = {}
    if wanted:
        for value, owner in zip(batch.objects, batch.owners, strict=False):
            if id(value) in wanted:
                found.setdefault(id(value), owner)
    return found


def _trail(value: object, owner: int | None, batch: Batch) -> list[object]:
    trail = [value]
    place: Batch | None = batch
    while place is not None and place.parents and owner is not None:
        trail.append(place.parents[owner])
        owner, place = place.places[owner], place.above
    trail.reverse()
    return trail


def _contributions(trails: list[list[Any]], grown: dict[int, int]) -> tuple[Contribution, ...]:
    """Sum up objects, each the end of its trail, of the same type below the same root."""
    from pytest_gpuleak.explain.explain import explain

    order = sorted(range(len(trails)), key=lambda index: -grown[id(trails[index][-1])])
    targets = [trails[index][0] for index in order[:MAX_EXPLAINED]]
    answers = explain(targets, ignore={id(trails), *map(id, trails)}, budget=Budget(EXPLAIN_STEPS)) if targets else []
    lookups = Lookups()
    for index in order[:MAX_EXPLAINED]:
        for parent, child in pairwise(trails[index]):
            lookups.announce(id(parent), id(child))
    parts: dict[tuple[str, str], Contribution] = {}
    for place, index in enumerate(order):
        size, label = grown[id(trails[index][-1])], _label(trails[index][-1])
        holder = _holder(answers[place], trails[index], lookups) if place < len(answers) else None
        key = (label, "" if holder is None else f"{holder.kind} {holder.root}")
        part = parts.get(key, Contribution(label, 0, 0, holder=holder))
        parts[key] = dataclasses.replace(part, bytes=part.bytes + size, count=part.count + 1)
    targets.clear()
    return tuple(sorted(parts.values(), key=lambda part: -part.bytes)[:MAX_PARTS])


def _label(value: Any) -> str:
    label = safe_access.public_label(type(value))
    if not is_map(type(value)):
        return label
    return f"{label} of a file" if maps_file(value) else f"{label}, anonymous"


def _holder(answer: Explanation, trail: list[object], lookups: Lookups) -> Holder:
    """Return the holder of the outermost untracked container, with the path on from there; of a long path its ends."""
    holder = answer.holder
    if len(trail) == 1:
        return holder
    pairs = list(pairwise(trail))
    omitted = max(0, len(pairs) - 2 * MAX_TRAIL)
    pairs[MAX_TRAIL : MAX_TRAIL + omitted] = []
    steps = [PathStep(_edge(parent, child, lookups), safe_access.class_label(type(parent))) for parent, child in pairs]
    if omitted:
        steps.insert(MAX_TRAIL, PathStep(omitted_edges(omitted), ""))
    text = holder.text + "".join(step.edge for step in steps)
    return Holder(holder.kind, holder.root, text, (*holder.path, *steps), holder.file, holder.line, holder.deciding)


def _edge(parent: Any, child: object, lookups: Lookups) -> str:
    if type(parent) is dict:
        key = lookups.key(parent, child)
        return "'s key" if key is None else f"[{safe_access.key_text(key[0])}]"
    if safe_access.is_a(parent, tuple):
        index = lookups.index(parent, child, tuple)
        if index is not None:
            name = safe_access.field_of_tuple(parent, index)
            return f"[{index}]" if name is None else f".{name}"
    return ".base" if safe_access.in_package(type(parent), "numpy") else f".<{safe_access.class_name(type(parent))}>"

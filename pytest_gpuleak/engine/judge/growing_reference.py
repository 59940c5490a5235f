"""Find the reference that each run of a suspect adds: what it leads from has to be emptied. Pure."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.engine.limits import MOST_COMPARED, MOST_EDGES_COMPARED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuleak.model.findings import Holder, PathStep

_ATTRIBUTE: Final = re.compile(r"\.[^\W\d]\w*")


def growing_reference(shown: Holder, first: Iterable[Holder], added: Iterable[Holder]) -> int | None:
    """Return the index in ``shown.path`` of the reference that each run adds; None where the paths do not tell.

    `shown` and `first` are holders of the first run, `added` those of the first re-run. What that added has a reference
    that no first path has: ``STATE['log'][1]`` beside ``STATE['log'][0]``. The nearest one to the root counts, since a
    new object brings the references below it, and an item of a container before an attribute, by which a chain of
    objects grows: ``LAST.value`` and, behind it, ``LAST.previous.value``.
    """
    known: set[tuple[PathStep, ...]] = set()
    for holder in islice(first, MOST_COMPARED):
        known.update(holder.path[:length] for length in range(1, min(len(holder.path), MOST_EDGES_COMPARED) + 1))
    items: set[int] = set()
    attributes: set[int] = set()
    for holder in islice(added, MOST_COMPARED):
        depth = min(len(holder.path), len(shown.path), MOST_EDGES_COMPARED)
        new = next((at for at in range(depth) if holder.path[: at + 1] not in known), None)
        if new is None or holder.root != shown.root or holder.path[:new] != shown.path[:new]:
            continue
        step, beside = shown.path[new], holder.path[new]
        if step.type != beside.type:
            continue
        if step.edge.startswith("[") and beside.edge.startswith("["):
            items.add(new)
        elif _ATTRIBUTE.fullmatch(step.edge) and _ATTRIBUTE.fullmatch(beside.edge):
            attributes.add(new)
    return min(items or attributes, default=None)

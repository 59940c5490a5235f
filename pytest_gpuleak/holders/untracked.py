"""Containers that C code has made and never told the collector about.

`PyStructSequence_New` (Objects/structseq.c) does not track what it makes, and torch returns such tuples from every
operation with named results: ``logits.max(1)``, ``torch.topk``, ``torch.linalg.svd``. Whoever keeps one keeps its
tensors, and `gc.get_referrers` does not show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.holders import raw
from pytest_gpuleak.holders.heap import get_objects, get_referents, is_tracked, untouchable_module
from pytest_gpuleak.holders.native import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.holders.heap import Deadline

_CHECK_EVERY: Final = 4096
_HAVE_GC: Final = 1 << 14
"""The flag of types whose objects the collector can look into (Include/object.h, Py_TPFLAGS_HAVE_GC)."""

_FLAGS: Final[Any] = type.__dict__["__flags__"]


class UntrackedContainers:
    """Finds containers of types that the collector knows, which are not tracked themselves, in a walk over the heap."""

    def find(self, orphans: Sequence[object], extra: Sequence[object], deadline: Deadline) -> list[Link]:
        """See `NativeEdgeFinder.find`."""
        wanted = set(map(id, orphans))
        own = {id(orphans), id(extra), id(untouchable_module())}
        candidates: dict[int, bool] = {}
        links: list[Link] = []
        met: set[int] = set()
        for source in ((extra,), get_objects()):
            for index, container in enumerate(source):
                if index % _CHECK_EVERY == 0 and deadline.passed():
                    return links
                if id(container) in own and container is not extra:
                    continue
                for value in get_referents(container):
                    kind = type(value)
                    if id(kind) not in candidates:
                        candidates[id(kind)] = _may_hide(kind)
                    if candidates[id(kind)] and not is_tracked(value):
                        _descend(value, candidates, wanted, links, met)
        return links


def _may_hide(kind: type) -> bool:
    """Whether an untracked object of this type may hold what the collector tracks.

    A dict or a tuple that is not tracked holds nothing of the kind, and classes written in C never are.
    """
    return (
        kind is not dict
        and kind is not tuple
        and not raw.is_subclass(kind, type)
        and bool(_FLAGS.__get__(kind) & _HAVE_GC)
    )


def _descend(value: object, candidates: dict[int, bool], wanted: set[int], links: list[Link], met: set[int]) -> None:
    """Add the links from an untracked container, and from those inside it, to wanted objects."""
    pending: list[tuple[object, tuple[object, ...]]] = [(value, ())]
    while pending:
        holder, above = pending.pop()
        if id(holder) in met:
            continue
        met.add(id(holder))
        for child in get_referents(holder):
            if id(child) in wanted:
                trail = (*above, holder, child)
                for index in range(len(trail) - 1):
                    links.append(Link(trail[index], trail[index + 1]))
            elif candidates.get(id(type(child))) and not is_tracked(child):
                pending.append((child, (*above, holder)))

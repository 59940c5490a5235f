"""Find the locals of suspended greenlets (gevent, SQLAlchemy's asyncio), whose frames lie on a stack that C code has put aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.frames import belongs_to_plugin, local_variables
from pytest_gpuleak.heap.hidden_references import Link, visible_objects
from pytest_gpuleak.heap.type_sieve import TypeSieve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.heap.budget import Budget

_MAX_FRAMES: Final = 100
"""Frames of one greenlet that are read, the innermost first."""


def suspended_greenlets(orphans: Sequence[object], extra: Sequence[object], budget: Budget) -> list[Link]:
    """Find greenlets in a walk over the heap (see `HeapFinder`): the collector shows nothing that their frames refer to."""
    kind = safe_access.loaded_class("greenlet", "greenlet")
    if kind is None:
        return []
    wanted = set(map(id, orphans))
    sieve = TypeSieve(lambda cls: safe_access.is_subclass(cls, kind))
    links: list[Link] = []
    for values in visible_objects(extra, {id(orphans), id(extra)}, budget):
        for greenlet in sieve.pick(values):
            links += [Link(greenlet, value, edge) for value, edge in _locals_of(greenlet, kind) if id(value) in wanted]
    return links


def _locals_of(greenlet: object, kind: type) -> Iterator[tuple[object, str]]:
    """Yield the locals of a greenlet's frames, each with its text in a path."""
    frame: Any = safe_access.slot(greenlet, kind, "gr_frame")
    way = ".gr_frame"
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        for name, value in () if belongs_to_plugin(frame.f_globals) else local_variables(frame):
            yield value, f"{way}.f_locals[{safe_access.cut_name(name)!r}]"
        frame, way = frame.f_back, f"{way}.f_back"

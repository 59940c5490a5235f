"""Who keeps an object alive, asked of any live object: for a notebook, a debugger, a training script."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, overload

from pytest_gpuleak.explain.edge_to_edit import deciding_edge
from pytest_gpuleak.heap.collector import whole_heap
from pytest_gpuleak.heap.frames import belongs_to_plugin
from pytest_gpuleak.model.findings import Autograd, Holder

if TYPE_CHECKING:
    import types

BUDGET_S = 5.0
"""Seconds that a search may take unless the caller says otherwise."""


class Holders(Sequence[Holder]):
    """The holders of an object, most actionable first; to free it takes an edit for each.

    Use it as a sequence of `Holder`, or as text (``print(holders(tensor))``). It holds plain data alone.

    Attributes:
        autograd: what the autograd graph behind the object retains; None for anything without one.
    """

    def __init__(self, found: Sequence[Holder], autograd: Autograd | None) -> None:
        self._found = tuple(found)
        self.autograd = autograd

    @overload
    def __getitem__(self, index: int) -> Holder: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Holder, ...]: ...

    def __getitem__(self, index: int | slice) -> Holder | tuple[Holder, ...]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __str__(self) -> str:
        from pytest_gpuleak.reports.terminal.findings import render_holders

        return "\n".join(render_holders(self._found, self.autograd))

    __repr__ = __str__


def holders(value: object, *, budget_s: float = BUDGET_S) -> Holders:
    """Tell who keeps `value` alive.

    ::

        >>> pytest_gpuleak.holders(loss)
        held by  app.metrics.HISTORY[0]['loss']  (module global, app/metrics.py:3)

    The variable of the caller's that was passed does not count where it is a global of the caller's module, as in a
    notebook: that one is known. A local variable does, where nothing else holds the object.

    Args:
        value: any live object; a number, a string and the like are shared by too many to tell anything.
        budget_s: seconds after which the search stops with what it has.

    Returns:
        One holder at least: of kind ``native`` or ``unknown`` where no root leads to the object.
    """
    return search(value, budget_s, ())


def search(value: object, budget_s: float, ignore: Collection[int]) -> Holders:
    """`holders`, which leaves aside what the call itself refers to the value by.

    Args:
        value: any live object.
        budget_s: seconds after which the search stops with what it has.
        ignore: ids of objects that do not count as holders.
    """
    from pytest_gpuleak.adapters.torch.graph_size import retained_by_graph
    from pytest_gpuleak.explain.search import explain

    targets = [value]
    namespace = _namespace_of_caller()
    known = set() if namespace is None else {(namespace, id(value))}
    with whole_heap():
        (found,) = explain(targets, ignore=ignore, budget_s=budget_s, known=known)
        if known and not found.holder.path and found.holder.kind in ("native", "unknown"):  # nothing but that variable
            (found,) = explain(targets, ignore=ignore, budget_s=budget_s)
    graph = retained_by_graph(targets)
    return Holders([_marked(holder) for holder in (found.holder, *found.others)], graph)


def _namespace_of_caller() -> int | None:
    """The id of the caller's globals, where it is code of a module and not of a function."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and belongs_to_plugin(frame.f_globals):
        frame = frame.f_back
    return id(frame.f_globals) if frame is not None and frame.f_locals is frame.f_globals else None


def _marked(holder: Holder) -> Holder:
    return dataclasses.replace(holder, deciding=deciding_edge(holder))

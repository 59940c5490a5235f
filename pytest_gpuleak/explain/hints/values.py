"""Hints on what the array is: a loss with its graph, a gradient, an optimizer's state, a view of a larger storage."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.edge_to_edit import OF_FRAMEWORKS
from pytest_gpuleak.explain.hints.pattern import Pattern
from pytest_gpuleak.explain.hints.trail import code
from pytest_gpuleak.heap.hidden_references import RING_ROOT
from pytest_gpuleak.model.readings import NOT_EVALUATED
from pytest_gpuleak.model.text import format_bytes

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail
    from pytest_gpuleak.model.findings import ArrayInfo

_STATE_OF: Final = re.compile(r"\[<\w*(?:Parameter|Tensor)>\]")
"""An optimizer's state by parameter: a defaultdict whose keys are tensors (torch/optim/optimizer.py)."""

_STATE_NAME: Final = re.compile(r"\['(?P<name>\w+)'\]")
_GRAPH: Final = re.compile(r"\.grad_fn\b.*")
_LEAST_RATIO: Final = 2
"""Smallest ratio of storage to view that is worth a copy."""

_LEAST_STORAGE: Final = 4096
"""Smallest storage that is worth a copy, in bytes."""


def optimizer_state(trail: Trail) -> str | None:
    """Recognise the moments that an optimizer keeps for each parameter from its first step on."""
    index = trail.find(".state")
    if index is None or trail.type(index + 1) != "collections.defaultdict" or trail.piles_up_before(index):
        return None
    if not trail.named or not _STATE_OF.fullmatch(trail.edge(index + 1)):
        return None
    name = _STATE_NAME.fullmatch(trail.edge(index + 2))
    kept = f" ({code(name['name'])})" if name else ""
    return (
        f"The optimizer {trail.owner(index)} keeps its state{kept} from its first step on: make an optimizer for each "
        "test, or call its `state.clear()` in teardown."
    )


def gradient(trail: Trail) -> str | None:
    """Recognise gradients left on parameters that outlive the test."""
    with_graph, last = trail.gradient_with_graph(OF_FRAMEWORKS), len(trail.steps) - 1
    index = last if with_graph is None else with_graph
    if with_graph is None and not (trail.edge(last) == ".grad" and trail.type(last).startswith(OF_FRAMEWORKS)):
        return None
    if not trail.named or trail.piles_up_before(index):
        return None
    if with_graph is None:
        return (
            f"The gradient of {trail.owner(last)} stays after the test: call `zero_grad(set_to_none=True)` on the "
            "module or optimizer in teardown."
        )
    return (
        f"The gradient of {trail.owner(index)} was made with `create_graph=True` and keeps its graph: call "
        "`zero_grad(set_to_none=True)` on the module or optimizer in teardown, or detach it."
    )


def autograd_graph(trail: Trail) -> str | None:
    """Recognise a result that is kept with the graph that computed it, and all that the graph saved."""
    in_graph = trail.match(_GRAPH)
    if not in_graph and not trail.has_graph:
        return None
    place = _place(trail, in_graph[0] if in_graph else len(trail.steps))
    if place is None:
        return None
    is_scalar = trail.finding.count == 1 and not in_graph and trail.array is not None and not trail.array.shape
    remedy = "its `.item()`, or `.detach()` it first" if is_scalar else "what `.detach()`, or `.item()`, returns"
    return f"{place} keeps a result with its autograd graph, and with it every tensor that the graph saved: store {remedy}."


def not_evaluated(trail: Trail) -> str | None:
    """Recognise lazy arrays: MLX computes an array when its values are asked for, and keeps the inputs until then."""
    if not any(array.dtype.endswith(NOT_EVALUATED) for array in trail.finding.tensors) or not trail.named:
        return None
    return (
        f"{_capitalised(trail.owner(0))} keeps arrays that were never evaluated, and with them the inputs of their "
        "computation: call `mx.eval()` on them before they are stored, or store their `.item()`."
    )


def mapped_file(trail: Trail) -> str | None:
    """Recognise an array whose memory is a file, or an open file of safetensors, which stays mapped."""
    array = trail.array
    if array is None or not array.file or not trail.named:
        return None
    name = code(re.split(r"[/\\]", array.file)[-1])
    if array.framework == "safetensors":
        return (
            f"The file {name} stays open and mapped as long as {trail.owner(0)} keeps it: open it in a `with` block, "
            "and keep only the arrays."
        )
    return (
        f"The file {name} stays mapped as long as {trail.owner(0)} keeps the array: drop the array in teardown, or "
        "keep a copy (`np.array(...)`) of what is needed."
    )


def view_of_large_array(trail: Trail) -> str | None:
    """Recognise a small part of a NumPy array that keeps the whole array."""
    array = trail.array
    if array is None or array.framework != "numpy" or array.file or not trail.named or not _keeps_more(array):
        return None
    count = math.prod(array.shape)
    numbers = "1 number keeps" if count == 1 else f"{count} numbers keep"
    return (
        f"{numbers} {format_bytes(array.storage_bytes)}, the whole array that they were taken from, in "
        f"{trail.owner(0)}: copy them (`.copy()`)."
    )


def _keeps_more(array: ArrayInfo) -> bool:
    return 0 < array.bytes * _LEAST_RATIO <= array.storage_bytes and array.storage_bytes >= _LEAST_STORAGE


array_of_objects: Final = Pattern(
    "A NumPy array of objects leads back to itself through an item, a cycle that no collector frees: store the items in "
    "a list, or set the item to None when done.",
    edge=r"\[.*\]",
    type=r"numpy\.ndarray",
    root=re.escape(RING_ROOT),
    kinds=("native",),
)
"""A ring through an array whose type has no `tp_traverse` (numpy/_core/src/multiarray/arrayobject.c): nobody sees it."""


def view_of_large_storage(trail: Trail) -> str | None:
    """Recognise a small view that keeps the whole storage behind it."""
    last = len(trail.steps) - 1
    behind = trail.edge(last) == "._base"
    if not behind and (trail.array is None or not _keeps_more(trail.array)):
        return None
    place = _place(trail, last if behind else last + 1)
    if place is None:
        return None
    return (
        f"{place} keeps a view, and with it the whole storage behind the view: if the rest is not needed, store a copy "
        "(`.clone()`)."
    )


def _place(trail: Trail, end: int) -> str | None:
    """Write where the array at the end of `end` steps is kept, or the root of several; None if other hints know better."""
    in_cache = trail.edge(end - 1) == " (cached result)"
    start = end - in_cache
    while trail.is_item(start - 1):  # the items that lead to it are where it is kept
        start -= 1
    if not trail.named or not trail.is_plain_until(start) or trail.piles_up_before(start):
        return None
    if trail.finding.count > 1:
        return _capitalised(trail.owner(0))
    return _capitalised(trail.owner(end - 1) if in_cache else trail.container_of(end))


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]

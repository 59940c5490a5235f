"""Find what gradient tapes have recorded in C++; each of several that may keep a tensor is shown."""

from __future__ import annotations

from gc import get_referents
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.tensorflow.lookup import TENSORS, loaded_names
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.hidden_references import Link, visible_objects
from pytest_gpuleak.heap.type_sieve import TypeSieve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.heap.budget import Budget

_BACKPROP: Final = "tensorflow.python.eager.backprop"
_WRAPPER: Final = "tensorflow.python.pywrap_tfe"
RECORDED: Final = " (recorded)"
"""Edge from a tape to what it has recorded."""


def tape_records(orphans: Sequence[object], extra: Sequence[object], budget: Budget) -> list[Link]:
    """Find the living tapes that keep tensors, variables, and tuples of them, in C++ (see `HeapFinder`)."""
    tape_class = loaded_names(_BACKPROP).get("GradientTape")
    tensor_class = TENSORS.get()
    if tensor_class is None or not safe_access.is_a(tape_class, type):
        return []
    wanted = [value for value in orphans if type(value) is tensor_class or _has_tensors(value, tensor_class)]
    if not wanted:
        return []
    tapes = _tapes(tape_class, {id(orphans), id(extra)}, extra, budget)
    known = {id(tape): _handles(tape) for tape in tapes}
    links: list[Link] = []
    for value in wanted:
        inside = {id(value), *map(id, get_referents(value))}
        sure = [tape for tape in tapes if not inside.isdisjoint(known[id(tape)])]
        links += [Link(tape, value, RECORDED) for tape in sure or tapes]
    return links


def _has_tensors(value: object, tensor_class: type) -> bool:
    """Return whether a value is a tuple or list of tensors, as operations keep their inputs, or a variable."""
    if type(value) in (tuple, list):
        return any(type(one) is tensor_class for one in value)  # type: ignore[attr-defined] # a tuple or a list
    return type((safe_access.instance_dict(value) or {}).get("_handle")) is tensor_class


def _tapes(tape_class: Any, ignore: set[int], extra: Sequence[object], budget: Budget) -> list[object]:
    sieve = TypeSieve(lambda kind: any(line is tape_class for line in safe_access.mro(kind)))
    found: dict[int, object] = {}
    for values in visible_objects(extra, ignore, budget):
        for tape in sieve.pick(values):
            if (safe_access.instance_dict(tape) or {}).get("_tape") is not None:
                found[id(tape)] = tape
    return list(found.values())


def _handles(tape: object) -> set[int]:
    found: set[int] = set()
    try:
        inner = vars((safe_access.instance_dict(tape) or {})["_tape"])["_tape"]
        for variable in loaded_names(_WRAPPER)["TFE_Py_TapeWatchedVariables"](inner):
            found |= {id(variable), id((safe_access.instance_dict(variable) or {}).get("_handle"))}
    except Exception:  # noqa: BLE001 - another version's tape: its variables are unknown
        return found
    return found

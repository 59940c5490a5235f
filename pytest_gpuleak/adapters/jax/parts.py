"""Find the arrays that JAX makes of an array and keeps in it, in C++ alone: for ``repr``, for NumPy, for its shards."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from gc import get_referents
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.arrays import select_arrays
from pytest_gpuleak.adapters.jax.lookup import ARRAYS, loaded_backends
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.collector import get_objects, get_referrers, whole_heap

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

_KEPT = ("_arrays", "_fully_replicated_shard")
"""What an array makes parts by; it returns those that it has made before."""


def find_parts(arrays: Sequence[object]) -> set[int]:
    """Return the ids of the `arrays` that are parts of a living array. Walks the heap where some may be.

    A part has the very stack that its array was made on, and so have the arrays of one call: the array is asked, but
    not where a container refers to what may be a part, since asking makes the missing parts.
    """
    native = ARRAYS.get()
    if native is None:
        return set()
    wanted = set(map(id, arrays))
    living = _living_arrays(native, wanted)
    read_stack = safe_access.class_dict(native)["traceback"].__get__
    stacks = [read_stack(array) for array in living]  # held, so that the ids are theirs alone
    by_stack: dict[int, list[Any]] = defaultdict(list)
    for array, stack in zip(living, stacks, strict=True):
        if stack is not None:
            by_stack[id(stack)].append(array)
    groups = [group for group in by_stack.values() if len(group) > 1 and not wanted.isdisjoint(map(id, group))]
    by_stack.clear()
    candidates = [array for group in groups for array in group if id(array) in wanted]
    orphans = set(map(id, candidates)) - _held(candidates, {id(living), id(arrays), *map(id, groups)})
    found: set[int] = set()
    shards: set[int] = set()
    for group in groups:
        asks = not orphans.isdisjoint(map(id, group))
        for array in group:
            shards |= _shards_of(array)
            if asks:
                found |= _parts_of(native, array)
    return (found & orphans) | (shards & wanted)


def _living_arrays(native: type, wanted: AbstractSet[int]) -> list[Any]:
    """Return all living arrays: the backends list them, which a walk over a large heap takes a thousand times as long for.

    What no backend that JAX still knows lists (`jax.clear_backends`, a client of the test's own) is found by the walk.
    """
    listed: list[Any] = []
    with suppress(Exception):  # a device that was lost, or another version's interface
        for backend in loaded_backends():
            listed += backend.live_arrays()
        if wanted <= set(map(id, listed)):
            return listed
    listed.clear()
    with whole_heap():
        return select_arrays(get_objects(), [native])


def _held(candidates: list[Any], own: set[int]) -> set[int]:
    if not candidates:
        return set()
    own.add(id(candidates))
    held: set[int] = set()
    with whole_heap():
        containers = get_referrers(*candidates)
    for container in containers:
        if id(container) not in own and type(container) is not FrameType:
            held.update(map(id, get_referents(container)))
    containers.clear()
    return held


def _shards_of(array: object) -> set[int]:
    """Return the ids of the arrays in the shards that an array has listed and keeps (``addressable_shards``)."""
    found: set[int] = set()
    for listed in list((safe_access.instance_dict(array) or {}).values()):
        for shard in listed if type(listed) is list else ():
            part = (safe_access.instance_dict(shard) or {}).get("_data")
            if part is not None and part is not array:
                found.add(id(part))
    return found


def _parts_of(native: Any, array: Any) -> set[int]:
    names = safe_access.class_dict(native)
    found: set[int] = set()
    for name in _KEPT:
        with suppress(Exception):  # deleted meanwhile, or a sharding without such a shard
            kept = names[name]
            value = kept.__get__(array) if type(kept) is property else kept(array)
            for part in value if type(value) is list else [value]:
                if part is not array:
                    found.add(id(part))
    return found

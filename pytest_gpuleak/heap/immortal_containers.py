"""Find containers that the collector does not track any more since they are immortal.

With its first thread, free-threaded CPython 3.13 makes functions, classes, modules and namespaces immortal, and a full
collection untracks them (Python/gc_free_threading.c, update_refs): `gc.get_referrers` shows no global. 3.14 does not.
"""

from __future__ import annotations

import gc
from gc import get_referents
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.heap.safe_access import is_subclass, loaded_modules
from pytest_gpuleak.heap.type_sieve import HAVE_GC, TYPE_FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

is_tracked: Final[Callable[[object], bool]] = getattr(gc, "is_tracked", lambda _: True)
"""Tell whether the collector shows an object. Where the interpreter does not tell, each may be shown."""


def are_untracked() -> bool:
    """Tell whether the interpreter has untracked what is immortal: this module's namespace holds functions."""
    return not is_tracked(globals())


def immortal_referrers(
    children: Sequence[object], untouchable: Collection[int], worked: Callable[[int], bool]
) -> list[object]:
    """Return the untracked containers that refer to one of `children`, reached from the loaded modules.

    `untouchable` has the ids of objects not to be looked into; `worked` counts steps, and tells whether none is left.
    """
    if not are_untracked():
        return []
    wanted = set(map(id, children))
    waiting: list[object] = [space for space in loaded_modules().values() if not is_tracked(space)]
    met = set(map(id, waiting))
    found: list[object] = []
    while waiting:
        container = waiting.pop()
        values = get_referents(container)
        if not is_tracked(container) and not wanted.isdisjoint(map(id, values)):
            found.append(container)
        inside = is_subclass(type(container), type)  # a class's namespace is tracked, the methods in it are not
        for value in values:
            if id(value) not in met and id(value) not in untouchable and _leads_on(value, inside):
                met.add(id(value))
                waiting.append(value)
        if worked(1 + len(values)):
            break
    return found


def _leads_on(value: object, in_class: bool) -> bool:
    if is_tracked(value):
        return in_class and type(value) is dict
    return bool(TYPE_FLAGS.__get__(type(value)) & HAVE_GC)

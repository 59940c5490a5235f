"""Find containers of C code that the collector does not track.

`PyStructSequence_New` (Objects/structseq.c) does not track what it makes, such as torch's named results
(``logits.max(1)``), so `gc.get_referrers` does not show them as holders.
"""

from __future__ import annotations

from itertools import filterfalse
from typing import TYPE_CHECKING

from pytest_gpuleak.heap.hidden_references import Descent, visible_objects
from pytest_gpuleak.heap.referrers import is_tracked, untouchable_modules
from pytest_gpuleak.heap.type_sieve import TypeSieve, may_refer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.heap.hidden_references import Link
    from pytest_gpuleak.heap.referrers import Deadline


class UntrackedContainers:
    """Finds untracked containers of types that the collector knows, in a walk over the heap."""

    def find(self, orphans: Sequence[object], extra: Sequence[object], deadline: Deadline) -> list[Link]:
        """Return links from untracked containers to `orphans` (see `NativeEdgeFinder`)."""
        wanted = set(map(id, orphans))
        own = {id(orphans), id(extra), *untouchable_modules()}
        wanted_types = set(map(id, map(type, orphans)))

        def may_hide(value: object) -> bool:
            return not is_tracked(value) and _may_hide(type(value))

        def is_wanted(value: object) -> bool:
            return id(value) in wanted

        hiding = TypeSieve(_may_hide)
        inner = TypeSieve(lambda kind: _may_hide(kind) or id(kind) in wanted_types)
        descent = Descent(is_wanted, is_wanted, may_hide, inner, deadline)
        for values in visible_objects(extra, own, deadline):
            descent.enter(hiding.pick(list(filterfalse(is_tracked, values))))
        return descent.links


def _may_hide(kind: type) -> bool:
    """Tell whether an untracked object of this type may hold tracked objects: no dict, tuple or static class does."""
    return kind is not dict and kind is not tuple and may_refer(kind)

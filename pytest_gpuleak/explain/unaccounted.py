"""Which of the objects that a search has met are referred to by something that the collector does not show.

An object that no visible container refers to is one; but a reference from C++ may also lead into the midst of what the
collector sees, a ring of Python objects say, that no collection frees for it. So references are counted: what the
interpreter counts, less those found.
"""

from __future__ import annotations

from collections import Counter
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.torch.lookup import torch_class
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.referrers import get_referents, untouchable_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pytest_gpuleak.heap.referrers import Deadline

_OWN_REFERENCES: Final = 3
"""To an object whose references are counted: the mapping of objects, the variable, the argument of `getrefcount`."""


class Hidden:
    """Objects with hidden referrers, by id, sorted by who may hold them.

    Args:
        objects: what the search has met, by id.
        nodes: the ids of those to look at: expanded, nothing left to find above them.
        parents: the ids of all that visibly refer to one of `nodes`.
        rooted: the ids of objects that a root is attached to: its references are not among those of containers.
        counted: references to objects that are the search's own, by id.
        linked: references from native code that are known already, by id.
        deadline: when to stop counting: what was not counted has none.

    Attributes:
        by_torch: those that torch's C++ code may hold: tensors with an owner beside their Python object, and anything
            with a reference too many.
        by_reference: those with a reference too many, beside the one that torch holds to the Python object of a tensor
            with other owners.
        unheld: the ids of those that nothing visible refers to.
    """

    def __init__(
        self,
        objects: Mapping[int, object],
        nodes: Sequence[int],
        parents: Collection[int],
        rooted: Collection[int],
        counted: Mapping[int, int],
        linked: Mapping[int, int],
        deadline: Deadline,
    ) -> None:
        self.by_torch: dict[int, object] = {}
        self.by_reference: dict[int, object] = {}
        self.unheld: set[int] = set()
        owners = _owners_of_tensors()
        wanted = set(nodes)
        explained: Counter[int] = Counter()
        untouchable = untouchable_modules()
        for parent in parents:
            if parent not in untouchable and parent in objects:
                referents = get_referents(objects[parent])
                if deadline.worked(1 + len(referents)):
                    return
                explained.update(filter(wanted.__contains__, map(id, referents)))
                del referents  # it refers to what is counted below
        for node in nodes:
            value = objects[node]
            if not explained[node] and node not in rooted:
                self.unheld.add(node)
            extra = getrefcount(value) - _OWN_REFERENCES - explained[node] - counted.get(node, 0)
            shared = owners(value)
            if shared:
                self.by_torch[node] = value
                extra -= 1
            elif shared is None:
                extra -= linked.get(node, 0)
            if extra > 0 and node not in rooted:
                self.by_reference[node] = value
                if shared is None:
                    self.by_torch[node] = value
            del value


def _owners_of_tensors() -> Callable[[object], bool | None]:
    """A function that tells whether a tensor has an owner in C++ beside its Python object; None for anything else.

    The owners are counted by ``Tensor._use_count`` (torch/csrc/autograd/python_variable_methods: the intrusive count,
    of which the Python object is one). Since torch 2.10 they also count, together, as one reference to that object.
    """
    tensor_class = torch_class("torch._C", "TensorBase")
    count: Any = None if tensor_class is None else safe_access.class_dict(tensor_class).get("_use_count")
    if tensor_class is None or count is None:
        return lambda _: None

    def owners(value: object) -> bool | None:
        if not safe_access.is_a(value, tensor_class):
            return None
        try:
            return int(count(value)) > 1
        except Exception:  # noqa: BLE001 - a tensor that cannot tell
            return True

    return owners

"""Find objects with referrers that the collector does not show.

An object without visible referrers is one; but a reference from C++ may also lead into a ring of Python objects, which
no collection frees then. So references are counted: the interpreter's count, less those found.
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
"""References that counting adds: the mapping of objects, the variable, the argument of `getrefcount`."""


class Hidden:
    """Objects with hidden referrers, by id, sorted by who may hold them.

    Args:
        objects: the objects that the search met, by id.
        nodes: the ids of those to check: expanded, nothing left to find above them.
        rooted: the ids of objects with a root, whose references are not those of containers.
        counted: number of the search's own references, by id.
        linked: number of references from C++ that are known already, by id.

    Attributes:
        by_torch: objects that torch's C++ code may hold: tensors with an owner beside their Python object, and anything
            with a reference too many.
        by_reference: objects with a reference too many, not counting torch's one to the Python object of a tensor with
            other owners.
        unheld: ids of the objects without visible referrers.
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
                del referents  # it refers to the objects that are counted below
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
    """Return a function that tells whether a tensor has an owner in C++; None for any other object.

    ``Tensor._use_count`` counts the owners (torch/csrc/autograd/python_variable_methods: the intrusive count, which
    includes the Python object). Since torch 2.10 they also count, together, as one reference to that object.
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

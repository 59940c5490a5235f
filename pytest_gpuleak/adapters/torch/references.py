"""Find what torch's C++ objects hold: gradients, bases of views, autograd graphs, constants of TorchScript's programs.

The collector sees a node only without other references to it (THPVariable_subclass_traverse; pytorch/pytorch#7343). So
live objects are asked, cheapest first. Edges are valid code: ``.grad_fn.next_functions[0][0]._saved_self``.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.reference_protocol import UNTOLD
from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
from pytest_gpuleak.adapters.torch.autograd_walk import LEAF_HOOKS, GraphWalk, kept_below, may_close
from pytest_gpuleak.adapters.torch.backward_pass import no_backward_running
from pytest_gpuleak.adapters.torch.lookup import torch_class, torch_module
from pytest_gpuleak.adapters.torch.node_hooks import NodeHooks, is_hook_dict
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.collector import get_objects
from pytest_gpuleak.heap.hidden_references import Link
from pytest_gpuleak.heap.interpreter import LENDS_ARGUMENTS, LOOKUP_REFERENCES, getrefcount
from pytest_gpuleak.heap.type_sieve import TypeSieve, TypeTable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pytest_gpuleak.heap.budget import Budget


MAX_LINKS: Final = 100
"""Links to one object that are noted: a base may have thousands of views."""

_AT_ONCE: Final = 16_384
"""Objects that are sorted in one batch."""

_STEPS_A_READ: Final = 32
"""Cost of reading a tensor's attributes, in steps of `Budget.worked`."""


class LiveTorchObjects:
    """The live objects that the collector tracks, newest first. Create one for each search: its lists hold them."""

    def __init__(self, access: TorchAccess, budget: Budget) -> None:
        self.access = access
        self.tensors: list[Any] = []
        self.nodes: list[Any] = []
        self.scripts: list[Any] = []
        script = torch_class("torch.jit", "RecursiveScriptModule")
        table = TypeTable()
        sieves = (
            TypeSieve(lambda kind: safe_access.is_subclass(kind, access.tensor_class), table),
            TypeSieve(access.is_node_type, table),
            TypeSieve(lambda kind: script is not None and safe_access.is_subclass(kind, script), table),
        )
        objects = get_objects()
        for start in budget.affordable(range(0, len(objects), _AT_ONCE), _AT_ONCE):
            part = objects[start : start + _AT_ONCE]
            types = table.ids_of(part)
            for found, sieve in zip(self.lists(), sieves, strict=True):
                found.extend(compress(part, sieve.marks(part, types)))
        for found in self.lists():
            found.reverse()

    def lists(self) -> tuple[list[Any], ...]:
        """Return the lists of tensors, nodes and scripted modules."""
        return self.tensors, self.nodes, self.scripts

    def links(
        self,
        wanted: Mapping[int, object],
        unheld: Collection[int],
        known: Collection[tuple[int, int]],
        budget: Budget,
    ) -> list[Link]:
        """Find the references to `wanted`; none while other threads run backward passes (see `backward_pass`)."""
        return self._find(_Finder(self, wanted, budget, unheld, known)) if wanted else []

    def every_link(self, wanted: Mapping[int, object], budget: Budget) -> list[Link]:
        """Like `links`, and walk the graphs in any case: a view refers to its base, and so does its graph."""
        return self._find(_Finder(self, wanted, budget, every=True)) if wanted else []

    def _find(self, finder: _Finder) -> list[Link]:
        with self.access.quiet(), no_backward_running() as resting:
            return finder.links() if resting else []


@dataclasses.dataclass(eq=False, repr=False)
class _Finder:
    """Searches for references to `wanted`: see `NativeObjects.links`, and `every_link` for `every`."""

    census: LiveTorchObjects
    wanted: Mapping[int, object]
    budget: Budget
    unheld: Collection[int] = ()
    known: Collection[tuple[int, int]] = ()
    every: bool = False

    def __post_init__(self) -> None:
        self._access = self.census.access
        self._links: list[Link] = []
        self._missing = set(self.wanted)
        self._counts: dict[int, int] = {}

    def links(self) -> list[Link]:
        census = self.census
        held = self._held()
        self._bases_and_gradients(census.tensors)
        self._inside(census.tensors)
        self._hooks(census.tensors)
        if self._missing or self.every:
            self._graphs([(tensor, "") for tensor in held], [node for node in census.nodes if self._is_held(node)])
        if self._missing:
            self._scripted(census.scripts)
        if self._missing:
            self._programs()
        if not self._links:
            # An object without Python references may keep itself alive: a parameter whose gradient's graph leads back.
            unheld = (value for node, value in self.wanted.items() if node in self.unheld)
            alone = list(filter(self._access.is_tensor, unheld))
            origins = [(tensor, ".grad") for tensor in self._affordable([*alone, *held]) if self._has_gradient(tensor)]
            origins += [(tensor, "") for tensor in alone]
            # Tensors first: a node that was read before has a Python object, and would hide the edge that closes the ring.
            for nodes in ((), [node for node in census.nodes if id(node) not in self.wanted], census.nodes):
                if not self._links:
                    self._graphs(origins, nodes)
        return self._links

    def _affordable(self, tensors: Sequence[Any]) -> Iterator[Any]:
        return self.budget.affordable(tensors, _STEPS_A_READ)

    def _held(self) -> list[Any]:
        held: list[Any] = []
        for tensor in self._affordable(self.census.tensors):
            shared = self._access.read(tensor, "_use_count")
            if id(tensor) not in self.unheld and getrefcount(tensor) > LOOKUP_REFERENCES + (shared != 1):
                held.append(tensor)
        return held

    def _is_held(self, node: Any) -> bool:
        # More: the caller's variable, unless it lends its reference to the parameter, and perhaps the graph.
        return id(node) not in self.unheld and getrefcount(node) > LOOKUP_REFERENCES + (not LENDS_ARGUMENTS) + 1

    def _note(self, parent: Any, child: Any, edge: str) -> None:
        count = self._counts.get(id(child), 0)
        if edge and (id(parent), id(child)) not in self.known and count < MAX_LINKS:
            self._counts[id(child)] = count + 1
            self._links.append(Link(parent, child, edge))
            self._missing.discard(id(child))

    def _bases_and_gradients(self, tensors: Sequence[Any]) -> None:
        """Note views and gradients. Compare storages and shapes first: reading a gradient gives it a Python object."""
        access = self._access
        storages: set[int | None] = set()
        shapes: set[tuple[int, ...]] = set()
        for value in self.wanted.values():
            if access.is_tensor(value):
                storages.add(access.storage(value))
                shapes.add(self._shape(value))
        if not shapes:
            return
        # A sparse tensor has no storage, and what its `values()` returns is a view with another one.
        has_sparse = None in storages
        storages.discard(None)
        for tensor in self._affordable(tensors):
            if (has_sparse or access.storage(tensor) in storages) and access.read(tensor, "_is_view"):
                base = access.read(tensor, "_base")
                if id(base) in self.wanted:
                    self._note(tensor, base, "._base")
            if self._shape(tensor) in shapes and self._access.may_have_gradient(tensor):
                gradient = access.read(tensor, "grad")
                if id(gradient) in self.wanted:
                    self._note(tensor, gradient, ".grad")

    def _inside(self, tensors: Sequence[Any]) -> None:
        """Note what a tensor is made of (`TorchAccess.inside`)."""
        if not any(map(self._access.is_tensor, self.wanted.values())):
            return
        for tensor in self._affordable(tensors):
            for part in self._access.inside(tensor):
                if id(part.value) in self.wanted:
                    self._note(tensor, part.value, part.edge)

    def _hooks(self, tensors: Sequence[Any]) -> None:
        """Note the hooks of `Tensor.register_post_accumulate_grad_hook`, and of `register_hook` on a tensor of a graph.

        C++ refers to their dict a second time, unlike that of a leaf's hooks unseen by the collector: a hook that leads to
        its tensor is never freed (torch/csrc/autograd/python_variable.cpp, THPVariable_subclass_traverse and
        THPVariable_set_backwards_hooks).
        """
        if not any(map(is_hook_dict, self.wanted.values())):
            return
        for tensor in self._affordable(tensors):
            name = LEAF_HOOKS if self._access.read(tensor, "is_leaf") else "_backward_hooks"
            hooks = self._access.read(tensor, name)
            if hooks is not None and id(hooks) in self.wanted:
                self._note(tensor, hooks, f".{name}")

    def _shape(self, tensor: Any) -> tuple[int, ...]:
        shape = self._access.read(tensor, "shape")
        return tuple([length for length in shape if type(length) is int]) if safe_access.is_a(shape, tuple) else ()

    def _graphs(self, origins: Sequence[tuple[Any, str]], nodes: Sequence[Any]) -> None:
        access = self._access
        walk = GraphWalk(access, self.budget)
        for owner, edge in origins:
            if walk.full or self.budget.spent:
                break
            tensor = owner if not edge else access.read(owner, edge[1:])
            node = None if tensor is None or access.read(tensor, "is_leaf") else access.grad_fn(tensor)
            if node is not None:
                walk.start(node, owner, f"{edge}.grad_fn")
        for node in nodes:
            if walk.full:
                break
            walk.start(node, node, "")
        hooks = NodeHooks(access)
        with hooks.reading(any(map(is_hook_dict, self.wanted.values()))):
            for node in walk.walk():
                for value, edge in self._kept_by(node, hooks):
                    if id(value) in self.wanted:
                        owner, route = walk.route(node)
                        self._note(owner, value, route + edge)
                if not (self._missing or self.every):
                    return

    def _kept_by(self, node: Any, hooks: NodeHooks) -> Iterator[tuple[Any, str]]:
        yield node, ""
        leaf = self._access.variable(node)
        if leaf is not None:
            yield leaf, ".variable"
        for saved in self._access.saved(node):
            yield saved
            # Operations that flatten their input (torch.nn.Linear) save a view that Python has never seen.
            if self._access.is_tensor(saved.value) and self._access.read(saved.value, "_is_view"):
                yield self._access.read(saved.value, "_base"), f"{saved.edge}._base"
        yield from hooks.of(node)

    def _has_gradient(self, tensor: Any) -> bool:
        return bool(self._access.read(tensor, "requires_grad")) and self._access.may_have_gradient(tensor)

    def _scripted(self, modules: Sequence[Any]) -> None:
        """Note what scripted modules' C++ side holds."""
        for module in modules:
            scripted = dict.get(safe_access.instance_dict(module) or {}, "_c")
            if scripted is not None and not self.budget.spent:
                with suppress(Exception):  # an older torch, or a partly constructed module
                    for value, edge in _parts_of_scripted(scripted):
                        if id(value) in self.wanted:
                            self._note(module, value, edge)

    def _programs(self) -> None:
        """Note the constants of TorchScript's programs."""
        missing = (value for key, value in self.wanted.items() if key in self._missing)
        shapes = {self._shape(value) for value in missing if self._access.is_tensor(value)}
        unit = compilation_unit() if shapes else None
        if unit is not None:
            with suppress(Exception):  # an older torch whose programs read otherwise: none is named
                for tensor, edge in constants(unit, shapes, self.budget):
                    if id(tensor) in self.wanted:
                        self._note(unit, tensor, edge)


def _parts_of_scripted(scripted: Any) -> Iterator[tuple[Any, str]]:
    """Yield parameters and buffers (torch/jit/_script.py), and the example inputs, which `torch.jit.trace` keeps."""
    for kind in ("ParameterDict", "BufferDict"):
        view: Any = torch_class("torch._C", kind)
        yield from ((tensor, f".{name}") for name, tensor in view(scripted).items())
    for name, values in scripted._retrieve_traced_inputs().items():
        for index, value in enumerate(values):
            yield value, f"._c._retrieve_traced_inputs()[{name!r}][{index}]"


class TorchReferences:
    """Searches live tensors, autograd nodes and scripted modules."""

    def owner_counter(self) -> Callable[[object], int | None]:
        """Return a counter of a tensor's C++ owners: ``Tensor._use_count`` less one for the Python object."""
        tensor_class = torch_class("torch._C", "TensorBase")
        if tensor_class is None:
            return lambda _: None
        count: Any = safe_access.class_dict(tensor_class).get("_use_count")

        def owners(value: object) -> int | None:
            if not safe_access.is_a(value, tensor_class):
                return None
            try:
                return UNTOLD if count is None else int(count(value)) - 1
            except Exception:  # noqa: BLE001 - without a count, assume an owner
                return 1

        return owners

    def take_census(self, budget: Budget) -> LiveTorchObjects | None:
        """List torch's live objects; None if torch is not imported."""
        access = TorchAccess.of_loaded()
        return None if access is None else LiveTorchObjects(access, budget)

    def held_alone(self, arrays: list[Any]) -> set[int]:
        """Return the ids of tensors whose Python objects torch alone keeps. References from the list do not count."""
        access = TorchAccess.of_loaded()
        found: set[int] = set()
        if access is not None:
            with access.quiet():
                for tensor in arrays:
                    if getrefcount(tensor) <= LOOKUP_REFERENCES + 1 and access.read(tensor, "_use_count") != 1:
                        found.add(id(tensor))
        return found

    def below(self, objects: Sequence[object]) -> list[object]:
        """Return what autograd graphs, gradients and views keep for the tensors among these objects."""
        access = TorchAccess.of_loaded()
        if access is None:
            return []
        with access.quiet(), no_backward_running() as resting:
            return list(kept_below(access, list(filter(access.is_tensor, objects)))) if resting else []

    def may_close_rings(self, arrays: Sequence[object]) -> bool:
        """Return whether a cycle may lead through one of the tensors' autograd graphs (see `autograd_walk`)."""
        access = TorchAccess.of_loaded()
        if access is None:
            return False
        with access.quiet(), no_backward_running() as resting:
            return not resting or may_close(access, arrays)

    def root_of(self, value: object) -> str:
        """Return ``hooks of an autograd graph`` for a dict of hooks, and what modes are held by; else empty."""
        if is_hook_dict(value):
            return "hooks of an autograd graph"
        return "the modes that torch is in" if any(value is mode for mode in _entered_modes()) else ""


def _entered_modes() -> Iterator[object]:
    """Yield the function and dispatch modes that this thread has entered and not left (torch/utils/_python_dispatch.py)."""
    namespace = safe_access.module_dict(torch_module("torch._C")) or {}
    for kind in ("function", "dispatch"):
        length, mode_at = namespace.get(f"_len_torch_{kind}_stack"), namespace.get(f"_get_{kind}_stack_at")
        if length is not None and mode_at is not None:
            yield from map(mode_at, range(length()))


_NODES: Final = "prim::Constant"
_STEPS_A_PROGRAM: Final = 128
"""Cost of listing a program's constants, in steps of `Budget.worked`."""


def compilation_unit() -> Any:
    """Return the unit that all programs are compiled into; None if `torch.jit` is not imported.

    `torch.jit.trace` and `torch.jit.script` compile into one unit, which frees no function (torch/jit/_state.py,
    `_python_cu`). A tensor that a trace meets and that is neither an argument nor part of the module is a constant.
    """
    namespace = safe_access.module_dict(torch_module("torch.jit._state"))
    kind = torch_class("torch._C", "CompilationUnit")
    unit = None if namespace is None else namespace.get("_python_cu")
    return unit if kind is not None and safe_access.is_a(unit, kind) else None


def constants(unit: Any, shapes: Collection[tuple[int, ...]], budget: Budget) -> Iterator[tuple[Any, str]]:
    """Yield the constants of these shapes, each with the code that reads it from the unit.

    A constant of another shape is not read: that would give it a Python object for as long as it lives.
    """
    for program in budget.affordable(unit.get_functions(), _STEPS_A_PROGRAM):
        read = f".find_function({program.qualified_name!r}).graph.findAllNodes({_NODES!r})"
        for index, node in enumerate(program.graph.findAllNodes(_NODES)):
            if node.hasAttribute("value") and node.kindOf("value") == "t":
                sizes = node.output().type().sizes()
                if sizes is not None and tuple(sizes) in shapes:
                    yield node.t("value"), f"{read}[{index}].t('value')"

"""Tell what storages are used for: parameters, buffers, gradients, optimizer state, inputs, and what graphs save."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from pytest_gpuleak.adapters.arrays import walk_arrays
from pytest_gpuleak.adapters.dependencies import replaced
from pytest_gpuleak.adapters.torch.lookup import torch_module
from pytest_gpuleak.adapters.torch.peak_places import parts_below, registered
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
    from pytest_gpuleak.adapters.torch.peak_places import Places
    from pytest_gpuleak.adapters.torch.peak_storages import Storages
    from pytest_gpuleak.model.peak_parts import PeakCategory

NO_SEQUENCE: Final = 1 << 62
"""Nodes without a sequence number of their own, as those that accumulate gradients, have one above."""

_RANKS: Final[dict[PeakCategory, int]] = {
    "input": 1, "activation": 2, "gradient": 3, "buffer": 4, "optimizer state": 4, "parameter": 4,
}  # fmt: skip
"""Of two uses of a storage the higher one counts: what is handed to a model and saved by its graph is an activation."""


class Roles:
    """The uses of storages, noted when modules register, call or move them, and when optimizers step.

    Use it as a context. Only hooks that torch has for all modules and optimizers are registered, and one method is
    wrapped; no hook is set on a user's object, and none for saved tensors, which would change what a test sees.
    """

    def __init__(self, torch: Any, storages: Storages, places: Places, guard: Callable[..., Any]) -> None:
        self._torch, self._storages, self._places, self._guard = torch, storages, places, guard
        self._running: Any = torch._C._current_graph_task_id
        self._optimizers: dict[int, tuple[Any, int]] = {}
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        modules = torch_module("torch.nn.modules.module")
        optimizers = torch_module("torch.optim.optimizer")
        guard = self._guard
        hooks = (
            modules.register_module_forward_pre_hook(guard(self._call)),
            modules.register_module_forward_hook(
                guard(lambda module, *_: self._places.leave(module)), always_call=True
            ),
            modules.register_module_parameter_registration_hook(guard(self._register("parameter"))),
            modules.register_module_buffer_registration_hook(guard(self._register("buffer"))),
            optimizers.register_optimizer_step_pre_hook(guard(lambda *_: self._places.begin_step())),
            optimizers.register_optimizer_step_post_hook(guard(lambda optimizer, *_: self._step(optimizer))),
        )
        for hook in hooks:
            self._undo.callback(hook.remove)
        # `Module.to` gives parameters other storages, a copy and a file give a module all it has: these call no hook.
        base, adopt = modules.Module, guard(self._adopt)

        def adopting(real: Callable[..., Any]) -> Callable[..., Any]:
            def adopts(module: Any, *args: Any, **kwargs: Any) -> Any:
                result = real(module, *args, **kwargs)
                adopt(module)
                return result

            return adopts

        for name in ("_apply", "__setstate__"):
            self._undo.enter_context(replaced(base, name, adopting(getattr(base, name))))

    def __exit__(self, *exception: object) -> None:
        self._undo.close()
        for optimizer, _ in self._optimizers.values():
            self._guard(self._note_state)(optimizer())

    def set(self, tensor: Any, category: PeakCategory, owner: str = "") -> None:
        """Note the use of a tensor's storage, and the module that owns it; of several uses the highest rank stays."""
        record = self._storages.find(tensor)
        if record is not None:
            if _RANKS[category] >= _RANKS.get(record.category, 0):
                record.category = category
            record.owner = owner or record.owner

    def _register(self, category: PeakCategory) -> Callable[..., None]:
        def note(module: Any, name: str, tensor: Any) -> None:
            del name
            self.set(tensor, category, self._places.path_of(module))

        return note

    def _adopt(self, module: Any) -> None:
        owner = self._places.path_of(module)
        for _, tensor in registered(module, "_parameters"):
            self.set(tensor, "parameter", owner)
        for _, tensor in registered(module, "_buffers"):
            self.set(tensor, "buffer", owner)

    def _call(self, module: Any, given: Any) -> None:
        if self._places.enter(module):
            # In a backward pass a checkpoint calls it again, with what it has kept for that.
            category: PeakCategory = "input" if self._running() == -1 else "activation"
            for tensor in walk_arrays(list(given), self._torch._C.TensorBase):
                self.set(tensor, category)
            for inner, _ in parts_below(module, ""):
                self._adopt(inner)  # their names are known from now on

    def _step(self, optimizer: Any) -> None:
        known, size = self._optimizers.get(id(optimizer), (None, -1))
        now = len(self._state(optimizer))
        if known is None or known() is not optimizer or size != now:  # most steps add no state
            self._optimizers[id(optimizer)] = (ref(optimizer), now)
            self._note_state(optimizer)

    def _note_state(self, optimizer: Any) -> None:
        for values in self._state(optimizer):
            for tensor in walk_arrays([values], self._torch._C.TensorBase):
                self.set(tensor, "optimizer state")

    @staticmethod
    def _state(optimizer: Any) -> list[Any]:
        state: Any = (safe_access.instance_dict(optimizer) or {}).get("state")
        return list(dict.values(state)) if safe_access.is_a(state, dict) else []


class SavedTensors:
    """What graphs save, read from the nodes that a call of torch has just made: no hook changes what is saved.

    A node's number rises within the thread that makes it, so each call's nodes are read once. They are read by the thread
    that made them, before it can have handed them to a backward pass; those that a backward pass has made in a thread of
    C++, once a call leads to them.
    """

    def __init__(self, torch: Any, access: TorchAccess, roles: Roles, of_backward_threads: set[int]) -> None:
        self._sequence_number: Any = torch._C._autograd._get_sequence_nr
        self._running: Any = torch._C._current_graph_task_id
        self._access, self._roles, self._of_backward_threads = access, roles, of_backward_threads
        self.last_read = threading.local()
        """The number of the last `node` that was read, of each thread that has begun."""

    def begin(self) -> None:
        """Begin in the calling thread: nodes that it has made so far are not read."""
        self.last_read.node = self._sequence_number()

    def read(self, tensors: Iterable[Any]) -> None:
        """Note the storages that the new nodes behind these tensors have saved."""
        access = self._access
        with access.quiet():
            nodes = [node for tensor in tensors if (node := access.grad_fn(tensor)) is not None]
            if nodes and self._running() == -1:  # a custom function's node is older than what its forward calls
                self._walk(nodes, self.last_read.node)
                self.last_read.node = self._sequence_number()

    def _note(self, kept: Any) -> None:
        for tensor in walk_arrays(kept, self._access.tensor_class):
            self._roles.set(tensor, "activation")

    def _walk(self, nodes: list[Any], mark: int) -> None:
        access, seen = self._access, set[int]()
        while nodes:
            node = nodes.pop()
            number = access.sequence_number(node)
            if number >= NO_SEQUENCE:
                self._roles.set(access.variable(node), "parameter")
            elif number not in seen and (number >= mark or number in self._of_backward_threads):
                seen.add(number)
                self._of_backward_threads.discard(number)
                for saved in access.packed(node):
                    if access.is_tensor(saved):
                        self._roles.set(saved, "activation")
                    elif saved is not None:
                        self._note(saved)
                if access.is_custom(node):
                    self._note(safe_access.instance_dict(node))
                nodes += [inner for _, inner in access.next_nodes(node)]

"""Find hooks of autograd nodes: dicts of functions that only C++ refers to.

The collector shows them only without other references to the node (traverse_node, python_cpp_function.cpp). But
``node.register_hook`` passes the dict to ``Function._register_hook``, and stops if that raises. So a dummy is
registered while a replacement notes the dict and raises. A tensor's hooks are its node's once the tensor is gone.
"""

from __future__ import annotations

import collections
import contextlib
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.torch.lookup import torch_class
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess

_REGISTER: Final = "_register_hook"
_KINDS: Final = (("register_hook", " (hooks)"), ("register_prehook", " (prehooks)"))


def is_hook_dict(value: object) -> bool:
    """Return whether `value` looks like torch's dict of hooks: functions by handle id (torch/utils/hooks.py)."""
    if type(value) is not collections.OrderedDict:
        return False
    pairs = list(dict.items(value))
    return bool(pairs) and all(type(key) is int and callable(hook) for key, hook in pairs)


class _NotedError(Exception):
    """Stops a registration after the dict was noted."""


class NodeHooks:
    """Reads the hooks of nodes, within `reading`."""

    def __init__(self, access: TorchAccess) -> None:
        self._access = access
        self._noted: list[Any] = []
        self._ready = False

    @contextlib.contextmanager
    def reading(self, needed: bool) -> Iterator[None]:
        """Let `of` find hooks within the context, if `needed` and if torch works as this module expects."""
        owner = torch_class("torch.autograd.function", "_HookMixin")
        function = torch_class("torch.autograd.function", "Function")
        original = None if owner is None else safe_access.class_dict(owner).get(_REGISTER)
        if (
            not needed
            or owner is None
            or function is None
            or type(original) is not staticmethod
            or safe_access.find_in_class(function, _REGISTER) is not original
        ):
            yield
            return

        def register(hooks: Any, hook: Any) -> Any:
            if hook is not self:
                return original.__func__(hooks, hook)
            self._noted.append(hooks)
            raise _NotedError

        type.__setattr__(owner, _REGISTER, staticmethod(register))
        self._ready = True
        try:
            yield
        finally:
            type.__setattr__(owner, _REGISTER, original)
            self._ready = False
            self._noted.clear()

    def of(self, node: Any) -> list[tuple[Any, str]]:
        """Return the dicts of a node's hooks, each with its text in a path."""
        found: list[tuple[Any, str]] = []
        for method, edge in _KINDS if self._ready else ():
            ask = self._access.read_node(node, method)
            if ask is None:
                continue
            try:
                handle = ask(self)
            except _NotedError:
                hooks = self._noted.pop()
                if hooks is not None:
                    found.append((hooks, edge))
            except Exception:  # noqa: BLE001 - the node's graph was freed
                continue
            else:  # another torch's way to register: undo it and stop
                self._ready = False
                handle.remove()
        return found

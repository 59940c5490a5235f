"""Read tensors and autograd nodes by torch's own descriptors, without running a subclass's code, mode, hook or kernel.

A first read gives a tensor a Python object for life (python_variable.cpp, "PyObject preservation").
"""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.adapters.torch.lookup import torch_module
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Iterator

_SAVED = "_raw_saved_"
_UNREADABLE: Final = object()


class Saved(NamedTuple):
    """A value that a node saved: a tensor, what a pack hook made of it, or an unpack hook; `edge` reads it (``._saved_self``)."""

    value: Any
    edge: str


class TorchAccess:
    """Safe reads of an imported torch. Create one for each search: it holds torch's classes."""

    def __init__(self, extension: dict[str, Any]) -> None:
        self._extension = extension
        self.tensor_class: type = extension["TensorBase"]
        self.function_class: type | None = extension.get("_FunctionBase")
        self._node_types: dict[int, type | None] = {}
        self._saved_names: dict[int, tuple[str, ...]] = {}
        self._getters: dict[str, Any] = {}

    @classmethod
    def of_loaded(cls) -> TorchAccess | None:
        """Return the access to the imported torch; None if torch is not imported."""
        namespace = safe_access.module_dict(torch_module("torch._C"))
        if namespace is None or not safe_access.is_a(namespace.get("TensorBase"), type):
            return None
        return None if namespace.get("DisableTorchFunction") is None else cls(namespace)

    def quiet(self) -> contextlib.AbstractContextManager[object]:
        """Run no subclass's and no mode's code within the context."""
        dispatch = self._extension.get("_DisableTorchDispatch", contextlib.nullcontext)
        return _Both(self._extension["DisableTorchFunction"](), dispatch())

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is a tensor."""
        return safe_access.is_a(value, self.tensor_class)

    def read(self, tensor: Any, name: str) -> Any:
        """Return a tensor's attribute, or the result of its method without arguments; None where torch raises."""
        try:
            if name not in self._getters:
                self._getters[name] = safe_access.class_dict(self.tensor_class)[name].__get__
            found = self._getters[name](tensor, type(tensor))
            return found() if type(found) is types.BuiltinFunctionType else found
        except Exception:  # noqa: BLE001 - torch raises many types; an unreadable attribute is left out
            return None

    def may_have_gradient(self, tensor: Any) -> bool:
        """Return whether reading ``.grad`` gives no warning (torch/csrc/autograd/python_variable.cpp)."""
        return bool(self.read(tensor, "is_leaf") or self.read(tensor, "retains_grad"))

    def storage(self, tensor: Any) -> int | None:
        """Return the address of a tensor's storage; None if it has none (sparse layouts)."""
        try:
            return int(self._extension["_storage_address"](tensor))
        except Exception:  # noqa: BLE001
            return None

    def storage_bytes(self, tensor: Any) -> int:
        """Return the bytes of a tensor's storage; 0 if it owns no memory (meta and fake tensors)."""
        try:
            storage = self._untyped(tensor)
            return 0 if storage.device.type == "meta" else int(storage.nbytes())
        except Exception:  # noqa: BLE001
            return 0

    def _untyped(self, tensor: Any) -> Any:
        return safe_access.class_dict(self.tensor_class)["untyped_storage"].__get__(tensor, type(tensor))()

    def inside(self, tensor: Any) -> list[Saved]:
        """Return the tensors that a tensor is made of: what a transform of `torch.func` has wrapped, a quantized one's scales."""
        wrappers = safe_access.module_dict(self._extension.get("_functorch")) or {}
        found: list[Saved] = []
        try:
            inner, edge = tensor, ""
            while wrappers["is_functorch_wrapped_tensor"](inner):
                inner, edge = wrappers["get_unwrapped"](inner), edge + " (wrapped by torch.func)"
                found.append(Saved(inner, edge))
        except Exception:  # noqa: BLE001 - an older torch, or a wrapper that has none
            return found
        if self.read(tensor, "is_quantized"):
            for name in ("q_per_channel_scales", "q_per_channel_zero_points"):
                part = self.read(tensor, name)
                if part is not None:  # None: of one scale
                    found.append(Saved(part, f".{name}()"))
        return found

    def grad_fn(self, tensor: Any) -> Any:
        """Return the node that made a tensor; None for a leaf.

        For a view written since, return its base's node: torch would make one (variable.cpp, VariableHooks::grad_fn).
        """
        if self.read(tensor, "_is_view") and self.read(tensor, "_version"):
            base = self.read(tensor, "_base")
            tensor = tensor if base is None else base
        return self.read(tensor, "grad_fn")

    def is_node(self, value: object) -> bool:
        """Return whether `value` is an autograd node, written in C++ or the ctx of a custom function."""
        return self.is_node_type(type(value))

    def is_node_type(self, kind: type) -> bool:
        """Return whether objects of a type are autograd nodes."""
        return self._node_type(kind) is not None

    def _node_type(self, kind: type) -> type | None:
        if id(kind) not in self._node_types:
            found: type | None = None
            if self.function_class is not None and safe_access.is_subclass(kind, self.function_class):
                found = self.function_class
            elif len(safe_access.mro(kind)) == 2 and not self._is_python(kind):
                namespace = safe_access.class_dict(kind)
                if "next_functions" in namespace and "_register_hook_dict" in namespace:
                    found = kind
            self._node_types[id(kind)] = found
        return self._node_types[id(kind)]

    @staticmethod
    def _is_python(kind: type) -> bool:
        return "__module__" in safe_access.class_dict(kind)

    def is_custom(self, node: object) -> bool:
        """Return whether a node is a custom function's ctx, whose attributes the collector sees."""
        return self.function_class is not None and safe_access.is_a(node, self.function_class)

    def read_node(self, node: Any, name: str) -> Any:
        """Return an attribute of a node; None where torch raises, as for a node whose graph is gone."""
        kind = self._node_type(type(node))
        try:
            if kind is type(node):  # of C++, whose attributes are no user's code
                return getattr(node, name)
            return None if kind is None else safe_access.class_dict(kind)[name].__get__(node, type(node))
        except Exception:  # noqa: BLE001
            return None

    def next_nodes(self, node: Any) -> list[tuple[int, Any]]:
        """Return the nodes that a node leads to, each with its position in ``next_functions``."""
        found = self.read_node(node, "next_functions")
        if type(found) is not tuple:
            return []
        return [(index, pair[0]) for index, pair in enumerate(found) if pair[0] is not None]

    def sequence_number(self, node: Any) -> int:
        """Return a number that grows with each node made in the same thread; -1 where torch has none."""
        try:
            return int(self.read_node(node, "_sequence_nr")())
        except Exception:  # noqa: BLE001
            return -1

    def variable(self, node: Any) -> Any:
        """Return the leaf whose gradient a node accumulates; None for other nodes. Creates no Python object."""
        kind = self._node_type(type(node))
        has_variable = kind is not None and "variable" in safe_access.class_dict(kind)
        return self.read_node(node, "variable") if has_variable else None

    def saved(self, node: Any) -> list[Saved]:
        """Return the values that a node saved for the backward pass. Calls no pack or unpack hook."""
        found: list[Saved] = []
        for name, raws, several in self._raw(node):
            shown = "saved_tensors" if name == "_raw_saved_tensors" else "_saved_" + name[len(_SAVED) :]
            hooks = [self._unpack_hook(one) for one in raws]
            values = self.read_node(node, shown) if all(hook is None for hook in hooks) else None
            for index, one in enumerate(raws):
                place = f"[{index}]" if several else ""
                if hooks[index] is not None and hooks[index] is not _UNREADABLE:
                    found.append(Saved(hooks[index], f".{name}{place}.unpack_hook"))
                value, edge = None, f".{shown}{place}"
                if values is not None:
                    value = values[index] if several and index < len(values) else values
                if value is None and one is not None:  # packed, or written to since it was saved
                    value, edge = self._data(one), f".{name}{place}.data"
                if value is not None:
                    found.append(Saved(value, edge))
        return found

    def packed(self, node: Any) -> Iterator[Any]:
        """Yield what a node keeps for the backward pass: tensors, or what pack hooks have made of them."""
        for _, raws, _ in self._raw(node):
            yield from (None if one is None else self._data(one) for one in raws)

    def _raw(self, node: Any) -> Iterator[tuple[str, Any, bool]]:
        """Yield the names under which a node has saved values, with these, and whether there may be several."""
        kind = self._node_type(type(node))
        for name in () if kind is None else self._names_of_saved(kind):
            raws = self.read_node(node, name)
            several = type(raws) is tuple or type(raws) is list
            yield name, raws if several else (raws,), several

    def _names_of_saved(self, kind: type) -> tuple[str, ...]:
        if id(kind) not in self._saved_names:
            names = [name for name in safe_access.class_dict(kind) if name.startswith(_SAVED)]
            self._saved_names[id(kind)] = tuple(names)
        return self._saved_names[id(kind)]

    @staticmethod
    def _unpack_hook(saved: Any) -> Any:
        """Return the user's hook that reading a saved tensor would call, or None; `_UNREADABLE` if torch is too old to tell."""
        if saved is None:
            return None
        try:
            return saved.unpack_hook
        except Exception:  # noqa: BLE001
            return _UNREADABLE

    @staticmethod
    def _data(saved: Any) -> Any:
        try:
            return saved.data
        except Exception:  # noqa: BLE001
            return None


class _Both:
    """Two contexts in one; a generator's takes five times as long, for each call of torch while a peak is recorded."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, outer: Any, inner: Any) -> None:
        self._outer, self._inner = outer, inner

    def __enter__(self) -> None:
        self._outer.__enter__()
        self._inner.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._inner.__exit__(*exception)
        self._outer.__exit__(*exception)

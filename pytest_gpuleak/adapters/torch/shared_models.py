"""Put back what re-runs change in models, optimizers and tensors that several tests share.

A second training step, or a second call of a layer with a hidden state, would change what the next test computes.
Between noting and restoring, bytes and names are held and no tensor: what a re-run replaces must be able to die.
"""

from __future__ import annotations

import contextlib
import types
from collections import OrderedDict, defaultdict
from mmap import mmap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.adapters.torch.lookup import loaded_torch, torch_class
from pytest_gpuleak.heap.safe_access import in_package, instance_dict, is_subclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_gpuleak.adapters.protocol import Restore

Path = tuple[object, ...]
"""Names and positions that lead from a root to a value."""

MOST_BYTES: Final = 64 * 1024**2
"""Bytes of tensors that are noted, in the order in which they are met: a copy of larger models takes too long."""

MOST_VISITED: Final = 20_000
"""Values that are looked at. A container with more than what is left of them is passed over."""

DEPTH: Final = 3
"""Containers and objects, one in another, that are looked into outside of models."""

FEW: Final = 16
"""Members of a container that is looked into outside of models: a list to which each test adds a tensor is passed over."""

MOST_LOOSE: Final = 8
"""Tensors outside of models that are noted."""

_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, tuple, dict, OrderedDict, defaultdict)
_CODE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_PACKAGES = ("_pytest", "pytest", "unittest")
"""Packages whose objects are not looked into: a request leads to every test of the session."""
_ALIGNMENT: Final = 16
"""Offsets are multiples of this, the size of the widest element (complex128)."""


class _Saved(NamedTuple):
    dtype: Any
    shape: Any
    elements: int
    offset: int


class _Found(NamedTuple):
    tensors: dict[Path, Any]
    plain: dict[Path, tuple[Any, object]]
    """The dict or list that has the value at the path's last name or position, and the value."""


def keep_values(roots: Callable[[], Mapping[str, object]]) -> list[Restore]:
    """Note the content of what `roots` returns by name; it is asked again when that is restored."""
    torch = loaded_torch()
    if torch is None:
        return []
    owners = roots()
    found = _find(owners)
    if not (found.tensors or found.plain):
        return []
    identities = {name: id(owner) for name, owner in owners.items()}
    buffer, saved = _save(torch, found.tensors)
    plain = {path: value for path, (_, value) in found.plain.items()}
    del owners, found  # nothing is kept alive

    def restore() -> None:
        now = _find({name: owner for name, owner in roots().items() if identities.get(name) == id(owner)})
        for path, value in plain.items():
            namespace, current = now.plain.get(path, ({}, value))
            if current != value or type(current) is not type(value):
                namespace[path[-1]] = value
        for path, content in saved.items():
            if path in now.tensors:
                with contextlib.suppress(Exception):  # a device that is lost, a layout that cannot be written to
                    _put_back(torch, now.tensors[path], content, buffer)

    return [restore]


def _save(torch: Any, tensors: Mapping[Path, Any]) -> tuple[mmap, dict[Path, _Saved]]:
    places: dict[Path, _Saved] = {}
    end = 0
    for path, tensor in tensors.items():
        with contextlib.suppress(Exception):  # a layout that has no shape
            count = tensor.numel() if _has_plain_content(torch, tensor) else 0
            size = count * tensor.element_size()
            if count and end + size <= MOST_BYTES:
                places[path] = _Saved(tensor.dtype, tensor.shape, count, end)
                end += -(-size // _ALIGNMENT) * _ALIGNMENT
    buffer = mmap(-1, max(end, 1))  # not on the heap, whose growth is a test's
    saved = {}
    for path, place in places.items():
        with contextlib.suppress(Exception), torch.inference_mode():  # a device that is lost, a dtype without a copy
            _read(torch, place, buffer).copy_(tensors[path])
            saved[path] = place
    return buffer, saved


def _has_plain_content(torch: Any, tensor: Any) -> bool:
    """Tell whether its elements are all of a tensor's content: `torch.frombuffer` ends the process for a quantized dtype."""
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)


def _read(torch: Any, place: _Saved, buffer: mmap) -> Any:
    return torch.frombuffer(buffer, dtype=place.dtype, count=place.elements, offset=place.offset).view(place.shape)


def _put_back(torch: Any, tensor: Any, place: _Saved, buffer: mmap) -> None:
    if tensor.dtype != place.dtype or tensor.shape != place.shape:
        return
    # Inference mode: some tensors can be written to only there.
    with torch.inference_mode():
        saved = _read(torch, place, buffer)
        # By bytes, as NaN differs from itself. What was not changed may be memory that nobody can write to.
        now = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        if not torch.equal(now, saved.reshape(-1).view(torch.uint8)):
            tensor.data.copy_(saved)  # its version stays: a graph that has saved it can still be used


def _find(roots: Mapping[str, object]) -> _Found:
    found = _Found({}, {})
    kinds = _Kinds()
    seen: set[int] = set()
    visits, loose = MOST_VISITED, MOST_LOOSE
    left = [_Step((name,), value, DEPTH, within=False, kept=False) for name, value in roots.items()][::-1]
    while left:
        path, value, depth, within, kept = left.pop()
        kind = kinds.of(type(value))
        if kind.is_tensor:
            loose -= not within
            if within or loose >= 0:
                found.tensors.update(_with_gradient(path, value))
            continue
        entries = None if id(value) in seen else _entries(value, kind, depth)
        if entries is None or len(entries) > (FEW if entries is value and not within else visits):
            continue
        seen.add(id(value))
        visits -= len(entries)
        within |= kind.is_model
        kept |= kind.is_torchs_own
        namespace = entries if type(entries) in (dict, list) and (kind.is_model or kept) else None
        for name, member in _named(entries):
            below = (*path, name)
            if type(member) not in _PLAIN:
                left.append(_Step(below, member, DEPTH if kind.is_model else depth - 1, within, kept))
            elif namespace is not None and type(name) is not tuple:  # a tuple stands for a key that is an object
                found.plain[below] = namespace, member
    return found


class _Step(NamedTuple):
    path: Path
    value: object
    depth: int
    """Containers and objects that may still be looked into below."""
    within: bool
    """Whether it is part of a model, an optimizer or a scheduler."""
    kept: bool
    """Whether it is part of an optimizer or a scheduler, whose plain values all belong to its state."""


class _Kind(NamedTuple):
    """What is asked of a class: a model is an optimizer or a scheduler too, which are `is_torchs_own`."""

    is_tensor: bool
    is_torchs_own: bool
    is_model: bool
    is_opaque: bool


class _Kinds:
    """Tells models, optimizers and schedulers from other objects, by their classes: each is looked at once a walk."""

    def __init__(self) -> None:
        tensors = (torch_class("torch", "Tensor"), torch_class("torch.nn", "Parameter"))
        self._tensors = [kind for kind in tensors if kind is not None]  # subclasses answer by user code
        self._module = torch_class("torch.nn", "Module")
        own = (torch_class("torch.optim", "Optimizer"), torch_class("torch.optim.lr_scheduler", "LRScheduler"))
        self._own = [kind for kind in own if kind is not None]
        self._known: dict[int, _Kind] = {}

    def of(self, kind: type) -> _Kind:
        found = self._known.get(id(kind))
        if found is None:
            own = any(is_subclass(kind, one) for one in self._own)
            is_code = any(is_subclass(kind, one) for one in _CODE) or any(in_package(kind, name) for name in _PACKAGES)
            found = self._known[id(kind)] = _Kind(
                any(kind is one for one in self._tensors),
                own,
                own or (self._module is not None and is_subclass(kind, self._module)),
                kind in _PLAIN or is_code,
            )
        return found


def _entries(value: object, kind: _Kind, depth: int) -> Any:
    """Return what is below: a list, a tuple or a dict; None where nothing is looked into."""
    if kind.is_model:
        return instance_dict(value)
    if depth <= 0 or kind.is_opaque:
        return None
    return value if type(value) in _CONTAINERS else instance_dict(value)


def _named(entries: Any) -> Iterator[tuple[object, object]]:
    """Name each entry; by its position where its key is an object, such as the parameter in an optimizer's state."""
    if type(entries) in (list, tuple):
        yield from enumerate(entries)
    else:
        for position, (key, value) in enumerate(dict.items(entries)):
            yield (key if type(key) in (str, int) else ("key", position)), value


def _with_gradient(path: Path, tensor: Any) -> Iterator[tuple[Path, Any]]:
    yield path, tensor
    if tensor.is_leaf and tensor.requires_grad and tensor.grad is not None:
        yield (*path, "grad"), tensor.grad

"""Note the lines that create torch tensors while a suspect is run again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.arrays import walk_arrays
from pytest_gpuleak.adapters.protocol import BACKWARD, OriginLog
from pytest_gpuleak.adapters.torch.reading import storage_key
from pytest_gpuleak.adapters.torch.storages import StorageReference
from pytest_gpuleak.heap.threads import started_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.adapters.creation_lines import OriginTable

_NOT_ARRAYS: Final = frozenset({int, float, bool, complex, str, type(None)})
"""Types of arguments and results that hold no tensor."""

_LEAST_SWEPT: Final = 1024
"""Storages held from which dead ones are let go, and again after each doubling."""


@contextlib.contextmanager
def trace_origins(torch: Any, is_user_file: Callable[[str], bool]) -> Iterator[OriginLog]:
    """Run the body under a torch function mode that notes where each storage is made, in this and new threads.

    A dispatch mode would give a Python object to each tensor that only C++ holds, which then looks like a leak.
    """
    from pytest_gpuleak.adapters.creation_lines import OriginTable

    table = OriginTable(is_user_file)
    notes = _Notes(torch, table)

    class NoteOrigins(torch.overrides.TorchFunctionMode):  # type: ignore[misc] # torch is Any to a project without it
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **kwargs) if kwargs else func(*args)
            if entered:
                notes.note(func, args, kwargs, result)
            return result

    entered = [True]
    try:
        with NoteOrigins(), started_threads(lambda: NoteOrigins().__enter__()):
            yield table
    finally:
        entered.clear()  # a thread that still runs keeps its mode, which does nothing from here on
        notes.end()


class _Notes:
    """Notes storages' lines in every call of the re-run: plain tensors, the most frequent, at the least cost.

    Each storage noted is held weakly, which keeps its address from being used again: what C++ makes there without a call
    of Python's, such as a constant of TorchScript's, would have the line of a storage that is long gone.
    """

    def __init__(self, torch: Any, table: OriginTable) -> None:
        self._torch = torch
        self._table = table
        self._address: Any = torch._C._storage_address
        self._plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self._held: dict[int, StorageReference] = {}
        self._next_sweep = _LEAST_SWEPT

    def note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        name = getattr(func, "__name__", "")
        if name == "__get__":  # attributes return existing tensors; .grad is from the last backward pass
            if getattr(getattr(func, "__self__", None), "__name__", "") == "grad":
                self._note_gradient(made)
        elif name == "backward":
            self._table.note(BACKWARD)
        elif type(made) in self._plain and self._noted(made):
            return
        elif type(made) not in _NOT_ARRAYS:
            self._note_all((args, kwargs), made)

    def end(self) -> None:
        """Forget storages that are gone, and let go of the others."""
        self._sweep()
        self._held.clear()

    def _noted(self, made: Any) -> bool:
        """Note a plain tensor, and return whether that was possible. Plain ones call no code of a user."""
        try:
            key = self._address(made)
            if key not in self._table.keyed:
                self._hold(key, made)
                self._table.note(key)
        except Exception:  # noqa: BLE001 - a tensor without a storage; the user's re-run must not fail
            return False
        return True

    def _note_gradient(self, gradient: Any) -> None:
        """Note a tensor read as ``.grad`` as made by the last backward pass: it may outlive its parameter."""
        torch = self._torch
        with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
            for array in walk_arrays(gradient, torch._C.TensorBase):
                key = storage_key(torch, array)
                self._hold(key, array)
                self._table.note_as(key, BACKWARD)

    def _note_all(self, given: Any, made: Any) -> None:
        torch = self._torch
        # A creating line is only evidence: without it the user's re-run must not fail.
        with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
            known = {storage_key(torch, array) for array in walk_arrays(list(given), torch._C.TensorBase)}
            for array in walk_arrays(made, torch._C.TensorBase):
                key = storage_key(torch, array)
                if self._hold(key, array) or key in known:
                    self._table.note_if_unknown(key)
                else:
                    self._table.note(key)

    def _hold(self, key: int, array: Any) -> bool:
        """Hold a tensor's storage weakly, where it has one; return whether it was held before."""
        if key in self._held:
            return True
        if len(self._held) >= self._next_sweep:
            self._sweep()
            self._next_sweep = max(2 * len(self._held), _LEAST_SWEPT)
        native = self._torch._C
        # A user's mode runs user code; a sparse tensor has no storage, and is its own key.
        no_storage = contextlib.suppress(NotImplementedError, RuntimeError)
        with native.DisableTorchFunction(), native._DisableTorchDispatch(), no_storage:
            self._held[key] = StorageReference(native.StorageBase, native.TensorBase.untyped_storage(array))
        return False

    def _sweep(self) -> None:
        for key in [key for key, reference in list(self._held.items()) if not reference.alive()]:
            self._table.forget(key)
            self._held.pop(key, None)

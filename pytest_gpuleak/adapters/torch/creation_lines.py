"""Note the lines that create torch tensors while a suspect is run again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.arrays import walk_arrays
from pytest_gpuleak.adapters.protocol import BACKWARD, OriginLog
from pytest_gpuleak.adapters.torch.reading import storage_key
from pytest_gpuleak.heap.threads import started_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.adapters.creation_lines import OriginTable

_NOT_ARRAYS: Final = frozenset({int, float, bool, complex, str, type(None)})
"""Types of arguments and results that hold no tensor."""


@contextlib.contextmanager
def trace_origins(torch: Any, is_user_file: Callable[[str], bool]) -> Iterator[OriginLog]:
    """Run the body under a torch function mode that notes where each storage is made, in this and new threads.

    A dispatch mode would give a Python object to each tensor that only C++ holds, which then looks like a leak.
    """
    from pytest_gpuleak.adapters.creation_lines import OriginTable

    table = OriginTable(is_user_file)
    note = _Notes(torch, table).note

    class NoteOrigins(torch.overrides.TorchFunctionMode):  # type: ignore[misc] # torch is Any to a project without it
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **kwargs) if kwargs else func(*args)
            if entered:
                note(func, args, kwargs, result)
            return result

    entered = [True]
    with NoteOrigins(), started_threads(lambda: NoteOrigins().__enter__()):
        yield table
    entered.clear()  # a thread that still runs keeps its mode, which does nothing from here on


class _Notes:
    """Notes storages' lines in every call of the re-run: plain tensors, the most frequent, at the least cost."""

    def __init__(self, torch: Any, table: OriginTable) -> None:
        self._torch = torch
        self._table = table
        self._address: Any = torch._C._storage_address
        self._plain = frozenset((torch.Tensor, torch.nn.Parameter))

    def note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        name = getattr(func, "__name__", "")
        if name == "__get__":  # attributes return existing tensors; .grad is from the last backward pass
            if getattr(getattr(func, "__self__", None), "__name__", "") == "grad":
                _note_gradient(self._torch, self._table, made)
        elif name == "backward":
            self._table.note(BACKWARD)
        elif type(made) in self._plain and self._noted((*args, *kwargs.values()) if kwargs else args, made):
            return
        elif type(made) not in _NOT_ARRAYS:
            _note(self._torch, self._table, (args, kwargs), made)

    def _noted(self, given: Any, made: Any) -> bool:
        """Note a plain tensor, and return whether that was possible. Plain ones call no code of a user."""
        plain, address, table = self._plain, self._address, self._table
        try:
            key = address(made)
            if key in table.keyed:
                for value in given:
                    kind = type(value)
                    if kind in plain:
                        if address(value) == key:
                            return True
                    elif kind not in _NOT_ARRAYS:
                        return False
            table.note(key)
        except Exception:  # noqa: BLE001 - a tensor without a storage; the user's re-run must not fail
            return False
        return True


def _note_gradient(torch: Any, table: OriginTable, gradient: Any) -> None:
    """Note a tensor read as ``.grad`` as made by the last backward pass: it may outlive its parameter."""
    with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
        for array in walk_arrays(gradient, torch._C.TensorBase):
            table.note_as(storage_key(torch, array), BACKWARD)


def _note(torch: Any, table: OriginTable, given: Any, made: Any) -> None:
    # A creating line is only evidence: without it the user's re-run must not fail.
    with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
        known = {storage_key(torch, array) for array in walk_arrays(list(given), torch._C.TensorBase)}
        for array in walk_arrays(made, torch._C.TensorBase):
            key = storage_key(torch, array)
            if key not in known:
                table.note(key)
            else:
                table.note_if_unknown(key)

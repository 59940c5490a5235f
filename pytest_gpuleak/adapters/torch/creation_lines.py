"""Note the lines that create torch tensors while a suspect is run again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.arrays import walk_arrays
from pytest_gpuleak.adapters.protocol import BACKWARD, OriginLog
from pytest_gpuleak.adapters.torch.reading import storage_key
from pytest_gpuleak.heap.threads import started_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.adapters.creation_lines import OriginTable


@contextlib.contextmanager
def trace_origins(torch: Any, is_user_file: Callable[[str], bool]) -> Iterator[OriginLog]:
    """Run the body under a torch function mode that notes where each storage is made, in this and new threads.

    A dispatch mode would see gradients too, but gives a Python object to every tensor that only C++ holds, which then
    looks like a leak, and may keep a test's mock from ``sys.modules`` and crash later.
    """
    from pytest_gpuleak.adapters.creation_lines import OriginTable

    table = OriginTable(is_user_file)

    class NoteOrigins(torch.overrides.TorchFunctionMode):  # type: ignore[misc] # torch is Any to a project without it
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if entered:
                _note(torch, table, func, (args, kwargs), result)
            return result

    entered = [True]
    with NoteOrigins(), started_threads(lambda: NoteOrigins().__enter__()):
        yield table
    entered.clear()  # a thread that still runs keeps its mode, which does nothing from here on


def _note_gradient(torch: Any, table: OriginTable, gradient: Any) -> None:
    """Note a tensor read as ``.grad`` as made by the last backward pass: it may outlive its parameter."""
    with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
        for array in walk_arrays(gradient, torch._C.TensorBase):
            table.note_as(storage_key(torch, array), BACKWARD)


def _note(torch: Any, table: OriginTable, func: Any, given: Any, made: Any) -> None:
    """Note the line of each storage in a call's result that none of its arguments has."""
    name = getattr(func, "__name__", "")
    if name == "__get__":  # attributes return existing tensors; .grad is from the last backward pass
        if getattr(getattr(func, "__self__", None), "__name__", "") == "grad":
            _note_gradient(torch, table, made)
        return
    if name == "backward":
        table.note(BACKWARD)
        return
    # A creating line is only evidence: without it the user's re-run must not fail.
    with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
        known = {storage_key(torch, array) for array in walk_arrays(list(given), torch._C.TensorBase)}
        for array in walk_arrays(made, torch._C.TensorBase):
            key = storage_key(torch, array)
            if key not in known:
                table.note(key)
            else:
                table.note_if_unknown(key)

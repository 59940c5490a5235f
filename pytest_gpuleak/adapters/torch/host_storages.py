"""Count the memory of torch's CPU storages, which C++ allocates, from the results of its operators."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.arrays import walk_arrays
from pytest_gpuleak.adapters.creation_lines import printable
from pytest_gpuleak.adapters.torch.compiler import (
    frame_switch,
    leave_uncompiled,
    mode_class,
    nothing_compiled,
    outside_traces,
)
from pytest_gpuleak.adapters.torch.live_storages import LiveStorages
from pytest_gpuleak.adapters.torch.lookup import loaded_torch
from pytest_gpuleak.heap.threads import started_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuleak.adapters.probe_protocol import HostBlocks

_FRESH: Final = "lift_fresh"
"""The operator to which `torch.tensor` gives what it has just made, unseen by any mode."""

_MOST_LACKS: Final = 5

TRACED: Final = "torch.jit.trace was called, whose memory is not counted"


class _Storages:
    """The CPU storages that operators have made, by their numbers as blocks."""

    def __init__(self, torch: Any, blocks: HostBlocks) -> None:
        self._torch = torch
        self._blocks = blocks
        self._base: Any = torch._C.TensorBase
        self._address: Any = torch._C._storage_address
        self._live = LiveStorages(torch, self._died)
        self._sizes: dict[int, int] = {}
        self._count = 0

    def note(self, operator: Any, given: Any, made: Any) -> None:
        """Count the storages that are new among an operator's results: neither given to it nor known."""
        older: set[int] | None = set() if operator._opname == _FRESH else None
        for tensor in walk_arrays(made, self._base):
            if tensor.device.type != "cpu" or tensor.layout is not self._torch.strided:  # type: ignore[attr-defined]
                continue
            key, number = self._address(tensor), self._live.find(tensor)
            if number is None:
                if older is None:
                    older = set(self._addresses(given))
                if key and key not in older:
                    self._hold(tensor)
            elif operator._schema.is_mutable:
                with self._torch._C.DisableTorchFunctionSubclass():
                    size = self._base.untyped_storage(tensor).nbytes()
                if size != self._sizes[number]:
                    self._add(number, size)

    def _addresses(self, given: Any) -> Iterator[int]:
        for tensor in walk_arrays(given, self._base):
            with contextlib.suppress(Exception):  # sparse and wrapping tensors have none
                yield self._address(tensor)

    def _hold(self, tensor: Any) -> None:
        with self._torch._C.DisableTorchFunctionSubclass():
            storage = self._base.untyped_storage(tensor)
            if not storage.resizable():
                return  # borrowed: NumPy's memory, a file
            self._count += 1
            self._live.hold(storage, self._count)
            self._add(self._count, storage.nbytes())

    def _add(self, number: int, size: int) -> None:
        self._sizes[number] = size
        self._blocks.add(number, size)

    def _died(self, number: int) -> None:
        del self._sizes[number]
        self._blocks.remove(number)

    def close(self) -> None:
        """Count no more."""
        for number in self._live.close():
            self._blocks.remove(number)


@contextlib.contextmanager
def counted_storages(blocks: HostBlocks, lacks: list[str]) -> Iterator[None]:
    """Give `blocks` each CPU storage that is made within, in threads too; `lacks` gets what could not be counted."""
    torch = loaded_torch()
    if torch is None:
        yield
        return
    switch, base = frame_switch(torch), mode_class()
    storages = _Storages(torch, blocks)
    active = True

    class NoteStorages(base):  # type: ignore[misc, valid-type] # torch is Any to a project without it
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **kwargs) if kwargs else func(*args)
            if active:
                before = switch(None)
                try:
                    storages.note(func, (args, kwargs), result)
                except Exception as error:  # noqa: BLE001 - the user's run goes on
                    _note(lacks, f"torch's storages ({type(error).__name__}: {printable(str(error))[:100]})")
                finally:
                    switch(before)
            return result

    leave_uncompiled(torch, (NoteStorages.__torch_dispatch__,))
    with contextlib.ExitStack() as context:
        context.callback(storages.close)
        context.enter_context(nothing_compiled())
        context.enter_context(outside_traces(torch, lambda: _note(lacks, TRACED)))
        context.enter_context(started_threads(lambda: NoteStorages().__enter__()))
        context.enter_context(NoteStorages())
        torch.empty(0)  # what torch loads for the first operator under a mode is loaded now
        try:
            yield
        finally:
            active = False  # a thread that still runs keeps its mode, which does nothing from here on


def _note(lacks: list[str], said: str) -> None:
    if said not in lacks and len(lacks) < _MOST_LACKS:
        lacks.append(said)

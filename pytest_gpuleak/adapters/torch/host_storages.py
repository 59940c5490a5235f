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
from pytest_gpuleak.adapters.torch.live_storages import FRESH, LiveStorages
from pytest_gpuleak.adapters.torch.lookup import loaded_torch
from pytest_gpuleak.heap.threads import read_kernel_file, started_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.adapters.probe_protocol import HostBlocks

_MOST_LACKS: Final = 5

TRACED: Final = "torch.jit.trace was called, whose memory is not counted"


class _Storages:
    """The CPU storages that operators have made, by their numbers as blocks."""

    def __init__(self, torch: Any, blocks: HostBlocks) -> None:
        self._torch = torch
        self._blocks = blocks
        self._base: Any = torch._C.TensorBase
        self._live = LiveStorages(torch, blocks.remove)
        self._count = 0
        self.resizes = self._live.resizes

    def note(self, operator: Any, given: Any, made: Any) -> None:
        """Count the storages that are new among an operator's results: neither given to it nor known."""
        if not self._live.makes(operator):
            return
        with self._torch._C.DisableTorchFunctionSubclass():
            parts = [part for tensor in walk_arrays(made, self._base) for part in self._live.parts(tensor)]
            results = [part for part in parts if part.device.type == "cpu" and part.layout is self._torch.strided]
            for _, storage, number in self._live.made_by(operator, results, given):
                if storage.resizable() or (operator._opname != FRESH and not _is_mapped(storage.data_ptr())):
                    self.hold(storage, number)  # else NumPy's memory, or a file's

    def hold(self, storage: Any, number: int | None) -> None:
        """Count the new block of a storage; the one that it had, by this number, is released once the new one is there."""
        if storage.device.type == "cpu":
            self._count += 1
            self._live.hold(storage, self._count)
            self._blocks.add(self._count, storage.nbytes())
            if number is not None:
                self._blocks.remove(number)

    def close(self) -> None:
        """Count no more."""
        for number in self._live.close():
            self._blocks.remove(number)


def _is_mapped(address: int) -> bool:
    """Return whether an address is in a file that is mapped, which is no memory of the heap."""
    try:
        maps = read_kernel_file("/proc/self/maps", whole=True)
    except OSError:
        return False
    for line in maps.splitlines():  # such as "7f00-7f80 r--p 00000000 08:01 1234  /a/file"
        fields = line.split(None, 5)
        first, _, last = fields[0].partition(b"-")
        if int(first, 16) <= address < int(last, 16):
            return fields[4] != b"0"
    return False


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
                apart(storages.note, func, (args, kwargs), result)
            return result

    def apart(note: Callable[..., None], *args: Any) -> None:
        before = switch(None)
        try:
            note(*args)
        except Exception as error:  # noqa: BLE001 - the user's run goes on
            _note(lacks, f"torch's storages ({type(error).__name__}: {printable(str(error))[:100]})")
        finally:
            switch(before)

    leave_uncompiled(torch, (NoteStorages.__torch_dispatch__, apart))
    with contextlib.ExitStack() as context:
        context.callback(storages.close)
        context.enter_context(storages.resizes(lambda *found: apart(storages.hold, *found)))
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

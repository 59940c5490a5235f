"""Tell the lines that made CUDA tensors of fixtures, which are not run again: by stacks recorded in their only setup.

Needs `torch.cuda.memory._allocation_traceback` (2.13): a block keeps its stack when the recording has ended, and loses it
when it is freed (c10/cuda/CUDACachingAllocator.cpp).
"""

from __future__ import annotations

import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.creation_lines import origin_at
from pytest_gpuleak.adapters.torch.compiler import compiler_not_imported
from pytest_gpuleak.adapters.torch.lookup import loaded_torch, torch_module
from pytest_gpuleak.adapters.torch.reading import memory_many

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuleak.model.source_files import Origin

_SWITCHES: Final = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
"""Functions of `torch._C` by which Python starts and ends a recording (torch/cuda/memory.py)."""


class TorchSetupLines:
    """Records a stack for each block that CUDA's allocator hands out, from `begin`, or from CUDA's first use, to `end`.

    It initialises no device. Where user code records, before or meanwhile, that is left alone, and no line is told any
    more: to put names to the frames of C++ that such a recording has takes seconds.
    """

    def __init__(self) -> None:
        self._core: Any = None
        self._real: dict[str, Any] = {}
        self._queue: list[Any] = []
        self._call = (self._record, ["queued by pytest-gpuleak\n"])
        self._recorded = self._others_record = False

    def begin(self) -> None:
        """Begin to record, or have it begun by CUDA's first use."""
        cuda = torch_module("torch.cuda")
        if type(cuda) is not types.ModuleType:  # a test's stand-in
            return
        if cuda.is_initialized():
            self._record()
        elif type(queue := vars(cuda).get("_queued_calls")) is list:
            self._queue = queue
            queue.insert(0, self._call)  # called within `_lazy_init` (see `first_use`)

    def end(self) -> None:
        """End the recording, unless user code has switched it meanwhile."""
        self._queue[:] = [call for call in self._queue if call is not self._call]
        if self._take_back() is not None:
            with suppress(Exception):  # the device was lost meanwhile
                torch_module("torch.cuda").memory._record_memory_history(enabled=None)

    def lines(self, arrays: Sequence[object], is_user_file: Callable[[str], bool]) -> Mapping[int, Origin]:
        """Return the user's line that made the memory of each array, by id, where it was recorded."""
        if not self._recorded or self._others_record:
            return {}
        native = loaded_torch()._C
        with native.DisableTorchFunction():
            on_cuda = [array for array in arrays if native.TensorBase.is_cuda.__get__(array)]
        lines: dict[int, Origin] = {}
        with compiler_not_imported():
            for array, memory in zip(on_cuda, memory_many(on_cuda), strict=True):
                frames = () if memory is None else native._cuda_allocationTraceback(memory.start) or ()
                place = next((frame for frame in frames if is_user_file(frame["filename"])), None)
                if place is not None:
                    lines[id(array)] = origin_at(place["filename"], int(place["line"]), place["name"])
        return lines

    def _record(self) -> None:
        with suppress(Exception):  # an allocator without history (cudaMallocAsync): there are no lines
            core = torch_module("torch._C")
            if core._cuda_isHistoryEnabled():
                self._others_record = True
                return
            # Only the stacks of living blocks, no trace of events; Python's frames alone, which takes microseconds.
            torch_module("torch.cuda").memory._record_memory_history(
                enabled="state", context="state", stacks="python", max_entries=1
            )
            self._recorded = True
            self._core = core
            self._real = {name: real for name in _SWITCHES if (real := getattr(core, name, None)) is not None}
            for name, real in self._real.items():
                setattr(core, name, self._noting(real))

    def _take_back(self) -> Any:
        """Restore the switches; return `torch._C` where the recording is on and ours."""
        core, self._core = self._core, None
        for name, real in self._real.items() if core is not None else ():
            setattr(core, name, real)
        return core

    def _noting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def switch(*arguments: Any, **named: Any) -> Any:
            """Leave the recording to user code from now on."""
            self._take_back()
            self._others_record = True
            return real(*arguments, **named)

        return switch

"""Record what fills the memory while code runs: a dispatch mode over storages, and a function mode over autograd nodes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.arrays import walk_arrays
from pytest_gpuleak.adapters.creation_lines import origin_at, printable
from pytest_gpuleak.adapters.dependencies import replaced
from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
from pytest_gpuleak.adapters.torch.compiler import (
    frame_switch,
    leave_uncompiled,
    mode_class,
    nothing_compiled,
    outside_traces,
)
from pytest_gpuleak.adapters.torch.live_storages import OTHER_UNDER_A_MODE, may_reuse, takes_other_steps
from pytest_gpuleak.adapters.torch.lookup import accelerator_names, loaded_torch
from pytest_gpuleak.adapters.torch.peak_facts import NO_SEQUENCE, Roles, SavedTensors
from pytest_gpuleak.adapters.torch.peak_history import PeakHistory
from pytest_gpuleak.adapters.torch.peak_places import Line, Place, Places
from pytest_gpuleak.adapters.torch.peak_steps import Record, steps_of
from pytest_gpuleak.adapters.torch.peak_storages import Storages
from pytest_gpuleak.heap.threads import started_threads
from pytest_gpuleak.model.peak_parts import Block, Peak, PeakMoment, group_blocks
from pytest_gpuleak.model.text import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.adapters.torch.peak_history import DevicePeak, Used
    from pytest_gpuleak.model.peak_parts import PeakCategory, PeakPhase
    from pytest_gpuleak.model.source_files import Origin


COMPILED = "code given to torch.compile ran uncompiled, so its peak may differ"
TRACED = "what torch.jit.trace ran is not in the parts"
OPAQUE = "tensors without a storage of torch's own (mkldnn) are not in the parts"
OTHER_STEPS = "the backward pass of {} has other steps while it is recorded, so the peak may differ"
FAULT = "a part of the record failed"

_MOST_LACKS: Final = 5


class PeakRecord:
    """Records, within the context, what fills the memory. Neither end raises; a fault is told with the peak."""

    def __init__(self, torch: Any, access: TorchAccess, is_user_file: Callable[[str], bool]) -> None:
        self._torch = torch
        self._lacks: list[str] = []
        self._active = False
        self._backward = False
        self._other_steps: set[str] = set()
        """The names of autograd nodes that have run, and do so otherwise under a mode."""
        self._places = Places(torch, is_user_file)
        self._storages = Storages(torch, self._places)
        self._roles = Roles(torch, self._storages, self._places, self._guarded)
        self.saved = SavedTensors(torch, access, self._roles, self._places.of_backward_threads)
        self._history = PeakHistory(torch)
        self._node: Any = torch._C._current_autograd_node
        self._plain: Any = torch.Tensor
        self._base: Any = torch._C.TensorBase
        self._no_overrides: Any = torch._C.DisableTorchFunctionSubclass
        self._accumulates: Any = torch._C._functions.AccumulateGrad
        self._context = contextlib.ExitStack()

    def __enter__(self) -> None:
        try:
            self._context.enter_context(self._roles)
            self._context.enter_context(self._storages.resizes(self._guarded(self._storages.resized)))
            self._context.enter_context(nothing_compiled())
            self._context.enter_context(outside_traces(self._torch, lambda: self._lack(TRACED)))
            self._context.enter_context(started_threads(self._enter_thread))
            self._context.enter_context(_unseen(self._torch))
            self._active = True
            self._history.begin_marked()
            self._storages.on_devices = [] if self._history.recording else None
            self._enter_thread(self._context)
        except Exception as error:  # noqa: BLE001 - a torch without what this needs: the run goes on without
            self._fault(error)
            self._context.close()

    def __exit__(self, *exception: object) -> None:
        self._active = False  # a thread that still runs keeps its modes, which do nothing from here on
        try:
            self._context.close()
        except Exception as error:  # noqa: BLE001
            self._fault(error)
        self._history.end()
        self._storages.close()

    def stage(self, stage: PeakPhase) -> None:
        """Tell which stage of a test runs, which is the phase outside models, backward passes and optimizers."""
        self._places.stage = stage

    def pause(self) -> None:
        """Count what is made from now on as there before: the setup of a fixture that outlives the test."""
        self._storages.paused = True
        self._history.pause()

    def resume(self) -> None:
        """Record again."""
        self._storages.paused = False
        self._history.resume()

    def _enter_thread(self, context: contextlib.ExitStack | None = None) -> None:
        """Enter the modes in the calling thread, until the context or the thread ends."""
        self._places.begin()
        self.saved.begin()
        for mode in _modes(self._torch, self):
            mode.__enter__() if context is None else context.enter_context(mode)

    def _fault(self, error: Exception) -> None:
        self._lack(_faulty(error))

    def _lack(self, said: str) -> None:
        if len(self._lacks) < _MOST_LACKS and said not in self._lacks:
            self._lacks.append(said)

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return a function whose faults are noted."""

        def guarded(*args: Any) -> None:
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001 - the user's run goes on
                self._fault(error)

        return guarded

    # -- what runs

    def run(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator and note its results."""
        history = self._history
        number, before = history.enter_operator(paused=self._storages.paused) if history.recording else (0, "")
        try:
            result = operator(*args, **kwargs) if kwargs else operator(*args)
        finally:
            if number:
                history.leave_operator(before)
        if self._active:
            self._note(operator, (args, kwargs), result, number)
        return result

    def _note(self, operator: Any, given: Any, made: Any, number: int) -> None:
        try:
            node = self._node()
            if node is not None:
                self._backward = True
                if type(node).__name__ in OTHER_UNDER_A_MODE and takes_other_steps(node):
                    self._other_steps.add(node.name())
            if type(made) is self._plain:  # nearly all; it has no code of a subclass
                if self._storages.makes(operator) or type(node) is self._accumulates:
                    self._note_results((made,), operator, given, node, number)
            else:
                with self._no_overrides():
                    self._note_results(list(walk_arrays(made, self._base)), operator, given, node, number)
            if number:
                if may_reuse(self._torch, operator, given[0], node):
                    self._history.reusing.add(str(number))
                self._history.note(number, self._places.place(operator.__name__, node))
            elif self._places.new_node:
                self._places.place("", node)
        except NotImplementedError:
            self._lack(OPAQUE)
        except Exception as error:  # noqa: BLE001 - the user's run goes on
            self._fault(error)

    def _note_results(self, results: Sequence[Any], operator: Any, given: Any, node: Any, number: int) -> None:
        try:
            self._storages.add(results, operator, given, node, number)
        except NotImplementedError:
            results = [part for tensor in results for part in self._storages.parts(tensor)]
            self._storages.add(results, operator, given, node, number)
        for tensor in results if type(node) is self._accumulates else ():
            self._roles.set(tensor, "gradient")

    def before_call(self, function: Any, given: Any, _: Any) -> None:
        """Read what the apply() of a custom function has made before a backward pass may use it: it is no torch call."""
        if getattr(function, "__name__", "") in ("backward", "grad"):
            self._read_nodes(list(walk_arrays(given, self._base)))

    def after_call(self, _: Any, given: Any, made: Any) -> None:
        """Read what the nodes that a call of torch has made have saved."""
        tensors = (made,) if type(made) is self._plain else list(walk_arrays(made, self._base))
        self._read_nodes(tensors or list(walk_arrays(given, self._base)))

    def _read_nodes(self, tensors: Sequence[Any]) -> None:
        if self._active:
            try:
                self.saved.read(tensors)
            except Exception as error:  # noqa: BLE001
                self._fault(error)

    # -- the result

    def devices(self) -> tuple[str, ...]:
        """Return the devices on which memory was taken, the one with the highest peak first, the host last."""
        gauges = [(device, gauge.peak) for device, gauge in self._storages.gauges.items() if gauge.peak]
        return tuple(device for device, _ in sorted(gauges, key=lambda one: (one[0] == "cpu", -one[1])))

    def peak(self, device: str) -> Peak:
        """Return the peak of a device in bytes above what was there before the context: of blocks, or of storages alone."""
        lacks = tuple(self._lacks) + ((COMPILED,) if self._places.compiled else ())
        try:
            by_history = self._history.peak(device, self._storages.on_devices or ())
        except Exception as error:  # noqa: BLE001 - a history of a form that is not known: the storages are told
            by_history = None
            lacks += (_faulty(error),)
        if by_history is not None:
            return self._peak_by_history(device, by_history, lacks)
        if device.startswith("cuda") and self._history.why_not:
            lacks += (f"memory beyond tensors, since {self._history.why_not}",)
        found = self._storages.at_peak(device)
        if found is None:
            return Peak(device, 0, lacks=lacks)
        last, records = found
        peak = self._told(device, last.place, [_block_of(record) for record in records], lacks)
        return dataclasses.replace(peak, bytes=sum(record.bytes for record in records))

    def _peak_by_history(self, device: str, found: DevicePeak, lacks: tuple[str, ...]) -> Peak:
        replayed = found.replayed
        blocks = [
            _inside(one) if one.record is None else _block_of(one.record)._replace(bytes=one.bytes)
            for one in found.used
        ]
        if replayed.gone:
            lacks += (f"{format_bytes(replayed.gone)} of what was there before had been released: the parts have more",)
        peak = self._told(device, found.place, blocks, lacks)
        in_blocks = sum(block.bytes for block in replayed.held)
        return dataclasses.replace(
            peak,
            bytes=in_blocks,
            unsplit_bytes=in_blocks - sum(part.bytes for part in peak.parts),
            workspaces_bytes=replayed.workspaces if replayed.exact else None,
        )

    def _told(self, device: str, place: Place | None, blocks: Sequence[Block], lacks: tuple[str, ...]) -> Peak:
        """Return a peak without its size."""
        if place is not None and place.operator in self._other_steps:
            lacks = (*lacks, OTHER_STEPS.format(_function_of(place.operator)))
        return Peak(
            device,
            0,
            None if place is None else _moment_of(place),
            group_blocks(blocks),
            backward=self._backward,
            lacks=lacks,
            steps=steps_of(self._storages.log.records, device, _category_of),
        )


def record_peak(is_user_file: Callable[[str], bool], device: str | None) -> PeakRecord | None:
    """Return a recorder for the imported torch; None if it is not imported, or has no `device` of this kind."""
    torch, access = loaded_torch(), TorchAccess.of_loaded()
    if torch is None or access is None:
        return None
    kinds = ("cpu", "cuda", "mps", *accelerator_names(torch))
    return PeakRecord(torch, access, is_user_file) if device is None or device.partition(":")[0] in kinds else None


def _modes(torch: Any, record: PeakRecord) -> tuple[Any, Any]:
    switch, base, operators = frame_switch(torch), mode_class(), torch._ops.OpOverload

    class NoteOperators(base):  # type: ignore[misc, valid-type] # torch is Any to a project without it
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before = switch(None)
            try:
                if not isinstance(func, operators):
                    return func(*args, **(kwargs or {}))
                return record.run(func, args, kwargs)
            finally:
                switch(before)

    def apart(note: Callable[[Any, Any, Any], None], function: Any, given: Any, made: Any) -> None:
        before = switch(None)
        try:
            note(function, given, made)
        finally:
            switch(before)

    new, last_read = torch._C._autograd._get_sequence_nr, record.saved.last_read

    class NoteCalls(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if new() > getattr(last_read, "node", NO_SEQUENCE):
                apart(record.before_call, func, args, None)
            result = func(*args, **kwargs) if kwargs else func(*args)
            if new() > getattr(last_read, "node", NO_SEQUENCE):
                apart(record.after_call, func, args, result)
            return result

    leave_uncompiled(torch, (NoteOperators.__torch_dispatch__, NoteCalls.__torch_function__, apart))
    return NoteOperators(), NoteCalls()


def _unseen(torch: Any) -> contextlib.AbstractContextManager[None]:
    """Have code that asks for overrides not be told of our mode: transformers leave their fast path for any."""
    native, real = torch._C, torch.overrides.has_torch_function

    def has_torch_function(relevant_args: Any) -> Any:
        last = native._len_torch_function_stack() - 1
        if last < 0 or type(native._get_function_stack_at(last)).__module__ != __name__:
            return real(relevant_args)
        mode = native._pop_torch_function_stack()
        try:
            return real(relevant_args)
        finally:
            native._push_on_torch_function_stack(mode)

    leave_uncompiled(torch, (has_torch_function,))
    return replaced(torch.overrides, "has_torch_function", has_torch_function)


def _moment_of(place: Place) -> PeakMoment:
    line = place.line
    file, number, function = (None, None, "") if line is None else (line.file, line.line, printable(line.function))
    return PeakMoment(
        file, number, printable(place.module), place.phase, function, place.operator, _short(place.forward)
    )


def _category_of(record: Record) -> PeakCategory:
    if record.into is not None:
        return _category_of(record.into)
    if record.is_temporary and record.category in ("held", "input"):
        return "temporary"
    if record.category == "held" and record.place.recomputed:
        return "activation"  # a checkpoint keeps it by its own hooks
    return record.category


def _block_of(record: Record) -> Block:
    place, item = record.place, int(record.dtype.itemsize)
    whole = math.prod(record.shape) * item >= record.bytes
    return Block(
        _category_of(record),
        record.bytes,
        str(record.dtype).removeprefix("torch."),
        record.shape if whole else (record.bytes // item,),
        printable(record.owner or place.module),
        _origin(place.line),
        _short(place.forward),
        _function_of(place.operator) if place.forward is not None else "",
    )


def _inside(used: Used) -> Block:
    block, place = Block("inside", used.bytes, "bytes", (used.bytes,)), used.place
    if place is None:
        return block
    return block._replace(
        module=printable(place.module),
        created=_origin(place.line),
        forward=_short(place.forward),
        operator=_function_of(place.operator),
    )


def _faulty(error: Exception) -> str:
    return f"{FAULT} ({type(error).__name__}: {printable(str(error))[:100]})"


def _function_of(node: str) -> str:
    """Return the function that an autograd node belongs to: ``log_softmax`` for ``LogSoftmaxBackward0``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"Backward\d*$", "", printable(node))).lower()


_origin_at = functools.lru_cache(maxsize=1024)(origin_at)


def _origin(line: Line | None) -> Origin | None:
    return None if line is None else _origin_at(line.file, line.line, line.function)


def _short(line: Line | None) -> str:
    return "" if line is None else f"{printable(line.file).rpartition('/')[2]}:{line.line}"

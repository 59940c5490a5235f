"""Record what fills the memory while code runs: a dispatch mode over storages, and a function mode over autograd nodes."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.arrays import walk_arrays
from pytest_gpuleak.adapters.creation_lines import origin_at, printable
from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
from pytest_gpuleak.adapters.torch.compiler import OWN_FRAMES, leave_uncompiled, mode_class, outside_traces, uncompiled
from pytest_gpuleak.adapters.torch.lookup import accelerator_names, loaded_torch
from pytest_gpuleak.adapters.torch.peak_facts import Roles, SavedTensors
from pytest_gpuleak.adapters.torch.peak_history import PeakHistory
from pytest_gpuleak.adapters.torch.peak_places import Line, Place, Places
from pytest_gpuleak.adapters.torch.peak_steps import Record, steps_of
from pytest_gpuleak.adapters.torch.peak_storages import Storages
from pytest_gpuleak.heap.threads import started_threads
from pytest_gpuleak.model.findings import Peak, PeakMoment
from pytest_gpuleak.model.peak_parts import Block, group_blocks
from pytest_gpuleak.model.text import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpuleak.adapters.torch.peak_history import DevicePeak, Used
    from pytest_gpuleak.model.findings import Origin, PeakCategory, PeakPhase

_DISPATCH: Final = "torch.utils._python_dispatch"
_ACCUMULATES: Final = "torch::autograd::AccumulateGrad"

COMPILED = "code given to torch.compile ran uncompiled, so its peak may differ"
TRACED = "what torch.jit.trace ran is not in the parts"
OPAQUE = "tensors without a storage of torch's own (mkldnn) are not in the parts"
FAULT = "a part of the record failed"

_MOST_LACKS: Final = 5


class PeakRecord:
    """Records, within the context, what fills the memory. Neither end raises; a fault is told with the peak."""

    def __init__(self, torch: Any, is_user_file: Callable[[str], bool]) -> None:
        self._torch = torch
        self._lacks: list[str] = []
        self._active = False
        self._backward = False
        self._places = Places(torch, is_user_file)
        self._storages = Storages(torch, self._places)
        self._roles = Roles(torch, self._storages, self._places, self._guarded)
        access = TorchAccess.of_loaded()
        self._history = PeakHistory(torch)
        self._saved = None if access is None else SavedTensors(torch, access, self._roles)
        self._node: Any = torch._C._current_autograd_node
        self._context = contextlib.ExitStack()

    def __enter__(self) -> None:
        try:
            self._storages.note_existing(self._torch._C.TensorBase)
            self._context.enter_context(self._roles)
            self._context.enter_context(outside_traces(self._torch, lambda: self._lack(TRACED)))
            self._context.enter_context(started_threads(self._enter_thread))
            self._active = True
            self._history.begin()
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
        if self._saved is not None:
            self._saved.begin()
        for mode in _modes(self._torch, self):
            mode.__enter__() if context is None else context.enter_context(mode)

    def _fault(self, error: Exception) -> None:
        said = f"{FAULT} ({type(error).__name__}: {printable(str(error))[:100]})"
        self._lack(said)

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
        if not self._history.recording:
            result = operator(*args, **kwargs) if kwargs else operator(*args)
            self._note(operator, result, 0)
            return result
        number, before = self._history.enter_operator(paused=self._storages.paused)
        try:
            result = operator(*args, **kwargs) if kwargs else operator(*args)
        finally:
            self._history.leave_operator(before)
        self._note(operator, result, number)
        return result

    def _note(self, operator: Any, made: Any, number: int) -> None:
        if not self._active:
            return
        try:
            node = self._node()
            if node is not None:
                self._backward = True
            for tensor in self._results(made):
                for part in self._parts(tensor):
                    record = self._storages.add(part, operator, node, number)
                    if record is not None and node is not None and node.name() == _ACCUMULATES:
                        self._roles.set(part, "gradient")
            if number:
                self._history.note(number, self._places.place(operator.__name__, node))
            elif node is None and self._places.new_node:
                self._places.note_node()
        except NotImplementedError:
            self._lack(OPAQUE)
        except Exception as error:  # noqa: BLE001 - the user's run goes on
            self._fault(error)

    def _results(self, made: Any) -> Iterable[Any]:
        if type(made) is self._torch.Tensor:  # nearly all
            return (made,)
        return list(walk_arrays(made, self._torch._C.TensorBase))

    def _parts(self, tensor: Any) -> Iterable[Any]:
        """Return the tensors that have a sparse one's memory; any other itself."""
        with self._torch._C.DisableTorchFunctionSubclass():
            if tensor.layout is self._torch.sparse_coo:
                return tensor._indices(), tensor._values()
            if tensor.layout in (self._torch.sparse_csr, self._torch.sparse_bsr):
                return tensor.crow_indices(), tensor.col_indices(), tensor.values()
        return (tensor,)

    def before_call(self, function: Any, given: Any) -> None:
        """Read what the apply() of a custom function has made before a backward pass may use it: it is no torch call."""
        if (
            self._saved is not None
            and self._saved.any_new
            and getattr(function, "__name__", "") in ("backward", "grad")
        ):
            self._read_nodes(given)

    def after_call(self, given: Any, made: Any) -> None:
        """Read what the nodes that a call of torch has made have saved."""
        if self._saved is not None and self._saved.any_new:
            tensors = self._results(made)
            self._read_nodes(tensors or given)

    def _read_nodes(self, values: Any) -> None:
        if self._active and self._saved is not None:
            try:
                self._saved.read(self._results(tuple(values)))
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
            lacks += (f"{FAULT} ({type(error).__name__}: {printable(str(error))[:100]})",)
        if by_history is not None:
            return self._peak_by_history(device, by_history, lacks)
        if device.startswith("cuda") and self._history.why_not:
            lacks += (f"memory beyond tensors, since {self._history.why_not}",)
        found = self._storages.at_peak(device)
        if found is None:
            return Peak(device, 0, lacks=lacks)
        last, records = found
        return Peak(
            device,
            sum(record.bytes for record in records),
            _moment_of(last.place),
            group_blocks([_block_of(record) for record in records]),
            backward=self._backward,
            lacks=lacks,
            steps=steps_of(self._storages.log.records, device, _category_of),
        )

    def _peak_by_history(self, device: str, found: DevicePeak, lacks: tuple[str, ...]) -> Peak:
        replayed = found.replayed
        parts = group_blocks(
            [
                _inside(one) if one.record is None else _block_of(one.record)._replace(bytes=one.bytes)
                for one in found.used
            ]
        )
        if replayed.gone:
            lacks += (f"{format_bytes(replayed.gone)} of what was there before had been released: the parts have more",)
        total = sum(part.bytes for part in parts)
        in_blocks = sum(block.bytes for block in replayed.held)
        return Peak(
            device,
            in_blocks,
            None if found.place is None else _moment_of(found.place),
            parts,
            unsplit_bytes=in_blocks - total,
            workspaces_bytes=replayed.workspaces if replayed.exact else None,
            backward=self._backward,
            lacks=lacks,
            steps=steps_of(self._storages.log.records, device, _category_of),
        )


def record_peak(is_user_file: Callable[[str], bool], device: str | None) -> PeakRecord | None:
    """Return a recorder for the imported torch; None if it is not imported, or has no `device` of this kind."""
    torch = loaded_torch()
    if torch is None:
        return None
    kinds = ("cpu", "cuda", "mps", *accelerator_names(torch))
    return PeakRecord(torch, is_user_file) if device is None or device.partition(":")[0] in kinds else None


def _modes(torch: Any, record: PeakRecord) -> tuple[Any, Any]:
    keep_out, base = uncompiled(torch), mode_class()

    class NoteOperators(base):  # type: ignore[misc, valid-type] # torch is Any to a project without it
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with keep_out():
                if not isinstance(func, torch._ops.OpOverload):
                    return func(*args, **(kwargs or {}))
                return record.run(func, args, kwargs)

    class NoteCalls(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with keep_out():
                record.before_call(func, args)
            result = func(*args, **kwargs) if kwargs else func(*args)
            with keep_out():
                record.after_call(args, result)
            return result

    leave_uncompiled(torch, (NoteOperators.__torch_dispatch__, NoteCalls.__torch_function__, *OWN_FRAMES))
    return NoteOperators(), NoteCalls()


def _moment_of(place: Place) -> PeakMoment:
    line = place.line
    file, number, function = (None, None, "") if line is None else (line.file, line.line, printable(line.function))
    return PeakMoment(
        file, number, printable(place.module), place.phase, function, place.operator, _short(place.forward)
    )


def _category_of(record: Record) -> PeakCategory:
    if record.is_temporary and record.category in ("held", "input"):
        return "temporary"
    if record.category == "held" and record.place.recomputed:
        return "activation"  # a checkpoint keeps it by its own hooks
    return record.category


def _block_of(record: Record) -> Block:
    place = record.place
    return Block(
        _category_of(record),
        record.bytes,
        record.dtype,
        record.shape,
        printable(record.owner or place.module),
        _origin(place.line),
        _short(place.forward),
        _function_of(place.operator) if place.forward is not None else "",
    )


def _inside(used: Used) -> Block:
    place = used.place
    if place is None:
        return Block("inside", used.bytes, "bytes", (used.bytes,))
    return Block(
        "inside",
        used.bytes,
        "bytes",
        (used.bytes,),
        printable(place.module),
        _origin(place.line),
        _short(place.forward),
        _function_of(place.operator),
    )


def _function_of(node: str) -> str:
    """Return the function that an autograd node belongs to: ``log_softmax`` for ``LogSoftmaxBackward0``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"Backward\d*$", "", printable(node))).lower()


@functools.lru_cache(maxsize=1024)
def _origin_at(file: str, line: int, function: str) -> Origin:
    return origin_at(file, line, function)


def _origin(line: Line | None) -> Origin | None:
    return None if line is None else _origin_at(line.file, line.line, line.function)


def _short(line: Line | None) -> str:
    return "" if line is None else f"{printable(line.file).rpartition('/')[2]}:{line.line}"

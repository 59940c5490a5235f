"""Record the blocks that a run would take on a CUDA device, from the tensors that it makes on the CPU.

It runs within a test's only run, whose outcome must be as without. So of what user code can look up a storage's `resize_`
alone is replaced: one dispatch mode stands below all modes of the test's, and where code is traced or compiled, which a mode
could change, it leaves for good. Who calls an operator is read from the frame that calls it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.arrays import walk_arrays
from pytest_gpuleak.adapters.torch import cuda_rules
from pytest_gpuleak.adapters.torch.compiler import leave_uncompiled, mode_class
from pytest_gpuleak.adapters.torch.cuda_attention import AttentionCall, Attentions
from pytest_gpuleak.adapters.torch.cuda_blocks import BlockLog
from pytest_gpuleak.adapters.torch.live_storages import LiveStorages, is_given_storage, may_reuse, takes_other_steps
from pytest_gpuleak.adapters.torch.lookup import loaded_torch
from pytest_gpuleak.adapters.torch.unestimated import what_is_not_estimated
from pytest_gpuleak.heap.threads import started_threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pytest_gpuleak.adapters.probe_protocol import TakenBlocks

RECURRENT: Final = "a recurrent layer has run, of which cuDNN takes an unknown amount"
THREADS: Final = "a thread was started"
OPAQUE: Final = "a tensor class of its own, or one without storage, was used"
OTHER_PRECISION: Final = "under autocast CUDA computes {} in another precision"
HIGHER_ORDER: Final = "an operator of higher order has run"


class BlockRecorder:
    """Records blocks from `begin` to `end`. Neither raises: what fails is a lack, told with the blocks."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._no_overrides: Any = torch._C.DisableTorchFunctionSubclass
        self._enter_autocast: Any = torch.autocast_increment_nesting
        self._leave_autocast: Any = torch.autocast_decrement_nesting
        self._node: Any = torch._C._current_autograd_node
        self._node_number: Any = torch._C._autograd._get_sequence_nr
        self._last_node = self._node_number()
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._layouts = (torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_bsr)
        folder = os.path.join(os.path.dirname(torch.__file__), "")  # noqa: PTH118, PTH120 - compared with names of code
        self._recurrent = os.path.join(folder, "nn", "modules", "rnn.py")  # noqa: PTH118
        self._functional = os.path.join(folder, "nn", "functional.py")  # noqa: PTH118
        self._mode: Any = None
        self._thread = 0
        self._undo = contextlib.ExitStack()
        self._paused = False
        self._blocks = BlockLog()
        self._live = LiveStorages(torch, self._blocks.end)
        self._autocast = self._autocasting = False
        self._call = _Call()
        self._attentions = Attentions(torch, self._blocks)
        self._half_softmaxes: set[int] = set()  # numbers of nodes
        self._norms: list[range] = []  # numbers of nodes
        self._rules: dict[str, Callable[[list[Any], Any, list[int]], None]] = {
            "empty_like.default": self._note_like,
            "bernoulli_.float": self._note_noise,
            "mul_.Tensor": self._note_multiplied,
            "log_sigmoid_forward.default": self._note_log_sigmoid,
            "_to_copy.default": self._note_copy,
            "_softmax.default": self._note_softmax,
            "_log_softmax.default": self._note_softmax,
            "_softmax_backward_data.default": self._note_softmax_gradient,
            "_log_softmax_backward_data.default": self._note_softmax_gradient,
        }

    # -- begin and end

    def begin(self) -> None:
        """Enter the mode in this thread."""
        try:
            self._thread = get_ident()
            self._undo.enter_context(what_is_not_estimated(self._step_aside, self._blocks.lack))
            self._undo.enter_context(started_threads(lambda: self._blocks.lack(THREADS)))
            self._undo.enter_context(self._live.resizes(self._resized))
            self._mode = _mode(self)
            self._torch._C._push_on_torch_dispatch_stack(self._mode)
        except Exception as error:  # noqa: BLE001 - a torch without what this needs: the run goes on
            self._blocks.fault(error)
            self.end()

    def end(self) -> None:
        """Leave the mode, wherever it stands on the stack: a fixture's may be above it. Safe to call twice."""
        self._leave()
        self._live.close()
        try:
            self._undo.close()
        except Exception as error:  # noqa: BLE001
            self._blocks.fault(error)

    def _leave(self) -> None:
        mode, self._mode = self._mode, None
        if mode is None or get_ident() != self._thread:
            return
        native, above = self._torch._C, []
        try:
            stack = [native._get_dispatch_stack_at(index) for index in range(native._len_torch_dispatch_stack())]
            if any(one is mode for one in stack):
                while (top := native._pop_torch_dispatch_stack(None)) is not mode:
                    above.append(top)
        except Exception as error:  # noqa: BLE001
            self._blocks.fault(error)
        for one in reversed(above):
            native._push_on_torch_dispatch_stack(one)

    def pause(self) -> None:
        """Count nothing from now on: a fixture that outlives the test is set up."""
        self._paused = True

    def resume(self) -> None:
        """Count again."""
        self._paused = False

    def _step_aside(self, why: str) -> None:
        """Leave for the rest of the test."""
        self._blocks.lack(why)
        if get_ident() == self._thread:
            self._leave()

    # -- what runs

    def note(self, operator: Any, given: Any, made: Any, frame: FrameType | None) -> None:
        """Note an operator's results, by what it was `given`; `frame` called it, None in a thread of C++."""
        if self._paused or self._mode is None:
            return
        try:
            with self._no_overrides():
                self._note(operator, given, made, frame)
        except Exception as error:  # noqa: BLE001 - the user's run goes on
            self._blocks.fault(error)

    def _note(self, operator: Any, given: Any, made: Any, frame: FrameType | None) -> None:
        schema = getattr(operator, "_schema", None)
        if schema is None:
            self._blocks.lack(HIGHER_ORDER)
            return
        name = operator.__name__
        self._note_autocast()
        self._note_caller(frame)
        results = [made] if type(made) is self._torch.Tensor else list(walk_arrays(made, self._torch._C.TensorBase))
        parts = [part for result in results for part in self._parts(result)]
        before = len(self._blocks)
        held = [
            self._hold(storage, known, operator) for _, storage, known in self._live.made_by(operator, parts, given)
        ]
        fresh = [number for number in held if number is not None]
        self._call.made += fresh
        self._apply_rules(name, given[0], given[1], results, fresh)
        self._last_node = self._node_number()
        if fresh and (self._call.attention.is_masked or may_reuse(self._torch, operator, given[0], self._node())):
            self._blocks.may_reuse(self._live.find(given[0][0]), before)
        self._call.attention.is_masked = False

    def _note_autocast(self) -> None:
        # Within an operator autocast is off: how deep its contexts are nested tells.
        self._autocasting = self._enter_autocast() > 1
        self._leave_autocast()
        self._autocast = self._autocast or self._autocasting

    def _note_caller(self, frame: FrameType | None) -> None:
        """Keep apart what one call from Python to torch does, which may be several operators."""
        site = (0, 0) if frame is None else (id(frame), frame.f_lasti)
        if site == self._call.site:
            return
        self._end_call()
        self._call = _Call(site, self._last_node)
        if frame is not None:
            code = frame.f_code
            if code.co_filename == self._recurrent and code.co_name == "forward":
                self._blocks.lack(RECURRENT)
            if code.co_filename == self._functional:
                self._call.is_alpha = "alpha" in code.co_name
                self._call.is_norm = code.co_name == "rms_norm"

    def _end_call(self) -> None:
        """Count a norm by root mean square as the fused kernel of CUDA, which makes its result alone."""
        call = self._call
        if call.is_norm:
            self._blocks.omit(call.made[:-1])
            self._norms.append(range(call.first_node, self._node_number()))

    def _parts(self, tensor: Any) -> tuple[Any, ...]:
        """Return the tensors that have a tensor's memory; none for a class that only stands for others."""
        kind = type(tensor)
        if kind not in self._plain:
            if kind.__module__.startswith(("torch._subclasses", "torch.fx")):
                return ()  # has no memory, while a program is recorded
            if kind.__torch_dispatch__ is not self._torch._C._disabled_torch_dispatch_impl:
                self._blocks.lack(OPAQUE)
                return ()
        if tensor.layout in self._layouts:
            return self._live.parts(tensor)
        self._blocks.lack(OPAQUE)
        return ()

    def _hold(self, storage: Any, known: int | None, operator: Any = None) -> int | None:
        """Return the number of the new block of a storage; the one that it had is released once the new one is there."""
        if storage.device.type != "cpu":
            return None
        number = self._blocks.begin(int(storage.nbytes()))
        self._live.hold(storage, number)
        if known is not None:
            self._blocks.end(known)
        elif operator is not None and is_given_storage(operator):
            self._blocks.given.add(number)
        return number

    def _resized(self, storage: Any, known: int | None) -> None:
        if not self._paused and self._mode is not None:
            try:
                self._hold(storage, known)
            except Exception as error:  # noqa: BLE001 - the user's run goes on
                self._blocks.fault(error)

    # -- what CUDA does otherwise

    def _apply_rules(self, name: str, args: Any, kwargs: Any, results: list[Any], fresh: list[int]) -> None:
        given = list(walk_arrays([*args, *(kwargs or {}).values()], self._torch._C.TensorBase))
        if not (results and given):
            return
        if self._autocasting:
            self._note_cast(name, given[0], results[0])
        rule = self._rules.get(name)
        if rule is not None:
            rule(given, results[0], fresh)
        self._attentions.note(name, given, results, self._call.attention, self._call.made)
        if self._call.attention.scores:
            self._attentions.note_result(name, results[0], self._call.attention, self._call.first_node, fresh)
        elif self._attentions.note_gradient(self._node(), results[0], fresh):
            return
        elif whose := self._unknown_node():
            inside = cuda_rules.taken_inside(name, args, results[0])
            self._blocks.doubt(whose, *fresh, self._blocks.pulse(inside))
        elif inside := cuda_rules.taken_inside(name, args, results[0]):
            self._blocks.pulse(inside)
        elif most := cuda_rules.most_inside(name, args, [*given, *results]):
            self._blocks.doubt(name.partition(".")[0], self._blocks.pulse(most))

    def _unknown_node(self) -> str:
        """Return the function whose backward pass runs, if that of CUDA has other steps, or those of a run without a mode."""
        node = self._node()
        if node is None:
            return ""
        if self._norms and any(node._sequence_nr() in numbers for numbers in self._norms):
            return "rms_norm"
        return str(node.name()) if takes_other_steps(node) else ""

    def _note_cast(self, name: str, given: Any, made: Any) -> None:
        is_half = given.dtype in (self._torch.float16, self._torch.bfloat16)
        if made.dim() and cuda_rules.is_cast_otherwise(name, is_half=is_half, is_widened=bool(self._call.widened)):
            self._blocks.lack(OTHER_PRECISION.format(name.partition(".")[0].strip("_")))
        elif is_half and self._call.is_norm:
            self._blocks.lack(OTHER_PRECISION.format("rms_norm"))

    def _note_like(self, _given: list[Any], _made: Any, fresh: list[int]) -> None:
        if fresh:
            self._call.noise = fresh[-1]

    def _note_noise(self, given: list[Any], _made: Any, _fresh: list[int]) -> None:
        """Count dropout's noise as CUDA's fused kernel does: a byte for each value (cuda/Dropout.cu)."""
        tensor = given[0]
        number = None if self._call.attention.scores else self._live.find(tensor)
        if number is not None and number == self._call.noise and tensor.is_floating_point() and not self._call.is_alpha:
            self._call.noise_bytes = self._blocks.sizes[number]
            self._blocks.sizes[number] = int(tensor.numel())

    def _note_multiplied(self, _given: list[Any], _made: Any, _fresh: list[int]) -> None:
        """Count the noise of a dropout in place in full, which is not fused."""
        if self._call.noise is not None and self._call.noise_bytes:
            self._blocks.sizes[self._call.noise] = self._call.noise_bytes

    def _note_log_sigmoid(self, _given: list[Any], _made: Any, fresh: list[int]) -> None:
        """Count no buffer, which the CPU's kernel alone makes (cuda/ActivationLogSigmoidKernel.cu)."""
        if len(fresh) > 1:
            self._blocks.sizes[fresh[-1]] = 0

    def _note_softmax(self, given: list[Any], _made: Any, _fresh: list[int]) -> None:
        """Count no copy in single precision that autocast makes first: CUDA's kernel reads half precision (SoftMax.cpp)."""
        number = self._live.find(given[0])
        if number is not None and number in self._call.widened:
            self._blocks.sizes[number] = 0
            self._half_softmaxes.add(self._node_number() - 1)

    def _note_softmax_gradient(self, _given: list[Any], made: Any, fresh: list[int]) -> None:
        """Count that kernel's gradient in half precision."""
        node = self._node()
        if fresh and node is not None and node._sequence_nr() in self._half_softmaxes:
            self._blocks.sizes[fresh[-1]] = 2 * int(made.numel())

    def _note_copy(self, given: list[Any], copy: Any, fresh: list[int]) -> None:
        """Note a copy of the same type on the same device: on CUDA one of the two is likely to be the host's."""
        if not fresh:
            return
        source = given[0]
        if source.dtype in (self._torch.float16, self._torch.bfloat16) and copy.dtype is self._torch.float32:
            self._call.widened.append(fresh[-1])
        elif source.dtype is copy.dtype and (number := self._live.find(source)) is not None:
            self._blocks.copied.add(number)

    # -- the result

    def taken(self) -> TakenBlocks:
        """Return what was taken, after the end."""
        self._end_call()
        return self._blocks.taken(autocast=self._autocast)


class _Call:
    """One call from Python to torch, at a `site`, and what it has made so far."""

    __slots__ = (
        "attention", "first_node", "is_alpha", "is_norm", "made", "noise", "noise_bytes", "site", "widened"
    )  # fmt: skip

    def __init__(self, site: tuple[int, int] = (0, -1), first_node: int = 0) -> None:
        self.site, self.first_node = site, first_node
        self.is_alpha = self.is_norm = False
        self.attention = AttentionCall()
        self.made: list[int] = []
        self.widened: list[int] = []
        self.noise: int | None = None
        self.noise_bytes = 0


def _mode(recorder: BlockRecorder) -> Any:
    """Return the mode. It is put on the stack without `__enter__`, which would tell torch.compile to compile nothing."""
    base = mode_class()

    class NoteBlocks(base):  # type: ignore[misc, valid-type]
        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            __tracebackhide__ = True
            result = func(*args, **kwargs) if kwargs else func(*args)
            recorder.note(func, (args, kwargs), result, sys._getframe().f_back)
            return result

    ours = (
        function for kind in (BlockRecorder, BlockLog, Attentions, AttentionCall) for function in vars(kind).values()
    )
    leave_uncompiled(loaded_torch(), (NoteBlocks.__torch_dispatch__, *ours))
    return NoteBlocks()


def record_blocks() -> BlockRecorder | None:
    """Return a recorder for the imported torch; None without torch, or where it has a device."""
    torch = loaded_torch()
    return None if torch is None or _has_device(torch) else BlockRecorder(torch)


def _has_device(torch: Any) -> bool:
    """Return whether torch has a device here, without touching one: CUDA's number is asked of the driver's manager."""
    accelerator = torch.accelerator.current_accelerator()  # of the build, or registered
    if accelerator is None:
        return False
    if accelerator.type != "cuda":
        return True
    cuda = torch.cuda
    if cuda.is_initialized():
        return True
    count = cuda._device_count_amdsmi if torch.version.hip else cuda._device_count_nvml
    return bool(count() > 0)

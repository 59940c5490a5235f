"""Keep torch's compiler and its tracer apart from what is recorded by modes. Importing the compiler takes 3.5 s of CPU."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.dependencies import replaced
from pytest_gpuleak.adapters.torch.lookup import loaded_torch, torch_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DISPATCH = "torch.utils._python_dispatch"


@contextlib.contextmanager
def compiler_not_imported() -> Iterator[None]:
    """Keep a snapshot of the allocator from importing torch's compiler, if the tests have not.

    A snapshot asks ``torch._inductor.codecache`` for the stacks of compiled code (``py_symbolize``,
    torch/csrc/profiler/python/combined_traceback.cpp), of which there is none before that import.
    """
    torch = loaded_torch()
    names: dict[str, Any] = {} if torch is None else vars(torch)
    if not names or "_inductor" in names or "torch._inductor" in sys.modules:
        yield
        return
    names["_inductor"] = stand_in = types.ModuleType("torch._inductor")
    try:
        yield
    finally:
        if names.get("_inductor") is stand_in:  # another thread may have imported the real one
            del names["_inductor"]


def frame_switch(torch: Any) -> Callable[[Any], Any]:
    """Return the function that sets what torch's compiler does with a frame, None: nothing, and returns what it did before.

    `torch._dynamo.disable` does the same, and imports the compiler.
    """
    switch: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame
    return switch


def leave_uncompiled(torch: Any, functions: Iterable[object]) -> None:
    """Have torch's compiler leave these functions' frames alone, and take what they call as it is.

    Within code that must be compiled whole (`fullgraph=True`) a frame of ours would fail it.
    """
    native = torch._C._dynamo.eval_frame
    if not hasattr(native, "set_code_exec_strategy"):  # an older torch
        return
    skip = native._FrameExecStrategy(native._FrameAction.SKIP, native._FrameAction.DEFAULT)
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is not None:
            native.set_code_exec_strategy(code, skip)


def mode_class() -> Any:
    """Return torch's dispatch mode without its own way to keep the compiler out, which imports the compiler.

    Operators of higher order run under it, which else raise (torch/_ops.py).
    """
    base = torch_module(_DISPATCH).TorchDispatchMode

    class Mode(base):  # type: ignore[misc, valid-type] # torch is Any to a project without it
        supports_higher_order_operators = True

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

    return Mode


@contextlib.contextmanager
def nothing_compiled() -> Iterator[None]:
    """Have functions given to `torch.compile` run as they are written, if the compiler is loaded.

    Under a mode it would note each as one that it never compiles, which with `fullgraph=True` then fails, in later tests too.
    """
    change = getattr(sys.modules.get("torch._dynamo"), "set_stance", None)
    with contextlib.nullcontext() if change is None else change("force_eager"):
        yield


@contextlib.contextmanager
def outside_traces(torch: Any, tell: Callable[[], object]) -> Iterator[None]:
    """Leave all modes while `torch.jit.trace` runs, and tell of it: under any mode its check of the trace fails."""
    dispatch, module = torch_module(_DISPATCH), torch.jit._trace
    traced = module._trace_impl

    def _trace_impl(*args: Any, **kwargs: Any) -> Any:
        tell()
        with dispatch._disable_current_modes():
            return traced(*args, **kwargs)

    with replaced(module, "_trace_impl", _trace_impl):
        yield

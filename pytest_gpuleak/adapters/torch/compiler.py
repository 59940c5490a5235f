"""Keep torch's compiler and its tracer apart from what is recorded by modes. Importing the compiler takes 3.5 s of CPU."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from typing import TYPE_CHECKING, Any

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


def uncompiled(torch: Any) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """Return a context in which torch's compiler takes no frame, as within `torch._dynamo.disable`."""
    change = getattr(_native(torch), "set_eval_frame", None)
    return contextlib.nullcontext if change is None else functools.partial(_Uncompiled, change)


def leave_uncompiled(torch: Any, functions: Iterable[object]) -> None:
    """Have torch's compiler leave these functions' frames alone, and take what they call as it is.

    Within code that must be compiled whole (`fullgraph=True`) a frame of ours would fail it.
    """
    native = _native(torch)
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
def outside_traces(torch: Any, tell: Callable[[], object]) -> Iterator[None]:
    """Leave all modes while `torch.jit.trace` runs, and tell of it: under any mode its check of the trace fails."""
    dispatch, module = torch_module(_DISPATCH), torch.jit._trace
    traced = module._trace_impl

    def _trace_impl(*args: Any, **kwargs: Any) -> Any:
        tell()
        with dispatch._disable_current_modes():
            return traced(*args, **kwargs)

    module._trace_impl = _trace_impl
    try:
        yield
    finally:
        if module._trace_impl is _trace_impl:
            module._trace_impl = traced


def _native(torch: Any) -> Any:
    return getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


class _Uncompiled:
    __slots__ = ("_before", "_change")

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self._change = change

    def __enter__(self) -> None:
        self._before = self._change(None)

    def __exit__(self, *exception: object) -> None:
        self._change(self._before)


OWN_FRAMES = (_Uncompiled.__init__, _Uncompiled.__enter__, _Uncompiled.__exit__)
"""The functions of `uncompiled`, which run before it takes effect."""

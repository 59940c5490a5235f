"""Watch for what an estimate of CUDA's memory cannot follow, and let optimizers work as they do there.

No function that user code has a name for is replaced.
"""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.dependencies import replaced
from pytest_gpuleak.adapters.torch.lookup import torch_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DYNAMO: Final = "torch._dynamo.eval_frame"

COMPILED: Final = "code compiled by torch.compile has run"
TRACED: Final = "torch.jit.trace has run"
OTHER_AUTOCAST: Final = "autocast was asked for on CUDA, which is not there, so that operators ran in full precision"
AVERAGED: Final = "a moving average was updated, for which CUDA works on all parameters at once"

FOREACH_OPTIMIZERS: Final = ("adam", "adamw", "sgd")
"""Modules of `torch.optim` whose results with and without foreach are the same to the bit on the CPU."""


@contextlib.contextmanager
def what_is_not_estimated(leave: Callable[[str], object], tell: Callable[[str], object]) -> Iterator[None]:
    """Call `leave` with the reason before code is traced or compiled, which a mode could change; `tell` of what else is not followed.

    A compiler that is loaded meanwhile knows at the end whether it was asked to compile.
    """
    compiler = torch_module(_DYNAMO)
    asked: list[tuple[Any, str, str, Callable[..., bool] | None]] = [
        (torch_module("torch.jit._trace"), "_create_interpreter_name_lookup_fn", TRACED, None),
        (torch_module("torch.cuda.amp.common"), "amp_definitely_not_available", OTHER_AUTOCAST, _called_by_autocast),
    ]
    if compiler is not None:
        asked.append((compiler, "_callback_from_stance", COMPILED, _compiles))
    with contextlib.ExitStack() as undo:
        for module, name, why, concerns in asked:
            undo.enter_context(replaced(module, name, _before(getattr(module, name), partial(leave, why), concerns)))
        undo.enter_context(_foreach_as_on_cuda(tell))
        yield
        backends = getattr(torch_module(_DYNAMO), "cached_backends", {})
        if compiler is None and any(backend is not None for backend in backends.values()):
            tell(COMPILED)


def _before(real: Any, act: Callable[[], object], concerns: Callable[..., bool] | None) -> Callable[..., Any]:
    """Return a function that acts before it calls the real one with what it concerns."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        if concerns is None or concerns(*args, **kwargs):
            act()
        return real(*args, **kwargs)

    return watched


def _compiles(callback: object) -> bool:
    return callback is not None  # as it is where torch's own code is kept from being compiled


def _called_by_autocast() -> bool:
    return sys._getframe(2).f_globals.get("__name__") == "torch.amp.autocast_mode"  # a GradScaler asks too


@contextlib.contextmanager
def _foreach_as_on_cuda(tell: Callable[[str], object]) -> Iterator[None]:
    """Let optimizers work on all parameters at once by default, as they do on CUDA, if their results are the same.

    Of what else asks for the devices on which that is the default, `tell` is told. Moving averages ask by themselves.
    """
    name = "_get_foreach_kernels_supported_devices"
    optimizers: Any = torch_module("torch.optim.optimizer")
    averages: Any = torch_module("torch.optim.swa_utils")
    real = getattr(optimizers, name)

    def for_optimizer() -> list[str]:
        asking = sys._getframe(2).f_globals.get("__name__", "")
        if asking.rpartition(".")[2] in FOREACH_OPTIMIZERS:
            return [*real(), "cpu"]
        tell(f"{asking} works on all parameters at once on CUDA alone")
        return list(real())

    def for_average() -> list[str]:
        tell(AVERAGED)
        return list(real())

    with contextlib.ExitStack() as undo:
        undo.enter_context(replaced(optimizers, name, for_optimizer))
        if hasattr(averages, name):
            undo.enter_context(replaced(averages, name, for_average))
        yield

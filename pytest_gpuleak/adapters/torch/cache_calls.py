"""Pass the user's calls that empty an allocator's cache through a function of the caller's, such as a timer."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.probe_protocol import AroundCall

_NATIVE = ("_cuda_emptyCache", "_accelerator_emptyCache")
"""Functions of `torch._C` that `torch.cuda.empty_cache` and `torch.accelerator.empty_cache` look up at each call
(torch/cuda/memory.py, torch/accelerator/memory.py): a user's name bound to either is met too."""


class CacheCalls:
    """The functions that are wrapped. `around` is handed each call, and returns what it returns."""

    def __init__(self, around: AroundCall) -> None:
        self._around: AroundCall | None = around
        self._wrapped: set[tuple[int, str]] = set()
        self._undo = contextlib.ExitStack()

    def watch(self, torch: Any, device_type: str) -> None:
        """Wrap the functions for a type of device that the process has used."""
        for name in _NATIVE:
            self._wrap(torch._C, name)
        if device_type != "cuda":
            self._wrap(getattr(torch, device_type, None), "empty_cache")

    def remove(self) -> None:
        """Restore the functions. A wrapper that other code has wrapped stays, and passes calls on."""
        self._around = None
        self._undo.close()
        self._wrapped.clear()

    def _wrap(self, owner: Any, name: str) -> None:
        real = getattr(owner, name, None)
        if real is not None and (id(owner), name) not in self._wrapped:
            self._wrapped.add((id(owner), name))
            self._undo.enter_context(replaced(owner, name, self._wrapper(real)))

    def _wrapper(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def empty_cache(*arguments: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            if self._around is None:
                return real(*arguments, **named)
            return self._around(functools.partial(real, *arguments, **named))

        return empty_cache

"""Pass the user's calls that empty an allocator's cache through a function of the caller's, such as a timer."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

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
        self._wrapped: list[tuple[Any, str, Any, Any]] = []

    def watch(self, torch: Any, device_type: str) -> None:
        """Wrap the functions for a type of device that the process has used."""
        for name in _NATIVE:
            self._wrap(torch._C, name)
        if device_type != "cuda":
            self._wrap(getattr(torch, device_type, None), "empty_cache")

    def remove(self) -> None:
        """Restore the functions. A wrapper that other code has wrapped stays, and passes calls on."""
        self._around = None
        for owner, name, real, wrapper in self._wrapped:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, real)
        self._wrapped.clear()

    def _wrap(self, owner: Any, name: str) -> None:
        real = getattr(owner, name, None)
        if real is not None and not any(one is owner and known == name for one, known, _, _ in self._wrapped):
            wrapper = self._wrapper(real)
            setattr(owner, name, wrapper)
            self._wrapped.append((owner, name, real, wrapper))

    def _wrapper(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def empty_cache(*arguments: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            if self._around is None:
                return real(*arguments, **named)
            return self._around(functools.partial(real, *arguments, **named))

        return empty_cache

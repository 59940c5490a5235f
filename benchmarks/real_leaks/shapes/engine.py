"""The shapes of two leaks that cost vLLM weeks, and of an engine that freezes the heap; see docs/real-leaks.md."""

from __future__ import annotations

import functools
import gc

import torch


class Executor:
    """Its bound method is the key of a cache, so each executor stays, with its weights."""

    def __init__(self) -> None:
        self.weights = torch.ones(256, 1024)

    @functools.cache  # noqa: B019 - the leak
    def layout(self, tokens: int) -> int:
        """Return how many slots these tokens take."""
        return tokens * 2


PLANS: dict[torch.nn.Module, int] = {}


def compile_for(module: torch.nn.Module) -> None:
    """Keep a plan for a module, by the module."""
    PLANS[module] = len(PLANS)


def start() -> Executor:
    """Return an executor on a heap that is frozen, as engines do before they serve, and never thaw it."""
    executor = Executor()
    gc.freeze()
    return executor

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainer.checkpoint import save
from trainer.model import flops_per_sample

if TYPE_CHECKING:
    from trainer.loop import Training


class Callback:
    def on_start(self, training: Training) -> None: ...

    def on_step(self, training: Training, samples: int) -> None: ...

    def on_epoch(self, training: Training, loss: float) -> None: ...


class Averaging(Callback):
    """Keeps an exponential moving average of the weights, as a model of its own."""

    def __init__(self, decay: float = 0.99) -> None:
        self.decay = decay
        self.model: torch.nn.Module | None = None

    def on_start(self, training: Training) -> None:
        self.model = copy.deepcopy(training.model).requires_grad_(False)

    @torch.no_grad()
    def on_step(self, training: Training, samples: int) -> None:
        assert self.model is not None
        for average, current in zip(self.model.parameters(), training.model.parameters(), strict=True):
            average.lerp_(current, 1 - self.decay)


class EarlyStopping(Callback):
    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best = float("inf")
        self.waited = 0

    def on_epoch(self, training: Training, loss: float) -> None:
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        training.stop = self.waited >= self.patience


class Throughput(Callback):
    """Measures how many operations a second the training reaches."""

    def __init__(self) -> None:
        self.operations = 0
        self.started = 0.0

    def on_start(self, training: Training) -> None:
        self.started = time.perf_counter()

    def on_step(self, training: Training, samples: int) -> None:
        # The backward pass costs twice what the forward pass costs.
        self.operations += 3 * samples * flops_per_sample(training.model)

    @property
    def gflops(self) -> float:
        return self.operations / (time.perf_counter() - self.started) / 1e9


class Checkpoints(Callback):
    """Saves the training at the end of each epoch that was the best so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.best = float("inf")

    def on_epoch(self, training: Training, loss: float) -> None:
        if loss < self.best:
            self.best = loss
            save(self.path, training.model, training.optimizer)

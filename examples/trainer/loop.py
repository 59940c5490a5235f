from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from trainer import metrics
from trainer.callbacks import Callback
from trainer.data import Dataset, batches


class Training:
    """A model on its way: gradient descent with momentum, callbacks, a named run in the metrics."""

    def __init__(self, model: nn.Module, *, run: str = "default", learning_rate: float = 0.1) -> None:
        self.model = model
        self.run = run
        self.optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
        self.stop = False

    def fit(
        self,
        data: Dataset,
        *,
        epochs: int,
        batch_size: int = 64,
        accumulate: int = 1,
        callbacks: Sequence[Callback] = (),
    ) -> float:
        """Train, and return the mean loss of the last epoch.

        With `accumulate`, the gradients of so many batches make one step of the optimizer.
        """
        for callback in callbacks:
            callback.on_start(self)
        mean = float("nan")
        for epoch in range(epochs):
            mean = self._epoch(data, batch_size, accumulate, callbacks, seed=epoch)
            for callback in callbacks:
                callback.on_epoch(self, mean)
            if self.stop:
                break
        return mean

    def _epoch(
        self, data: Dataset, batch_size: int, accumulate: int, callbacks: Sequence[Callback], seed: int
    ) -> float:
        losses: list[float] = []
        parts: list[tuple[Tensor, Tensor]] = []
        for part in batches(data, batch_size, seed=seed):
            parts.append(part)
            if len(parts) == accumulate:
                losses.append(self._step(*part) if accumulate == 1 else self._accumulated_step(parts))
                for callback in callbacks:
                    callback.on_step(self, sum(len(labels) for _, labels in parts))
                parts.clear()
        return sum(losses) / len(losses)

    def _step(self, points: Tensor, labels: Tensor) -> float:
        loss = cross_entropy(self.model(points), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        metrics.record(self.run, loss.item(), self.learning_rate)
        return loss.item()

    def _accumulated_step(self, parts: Sequence[tuple[Tensor, Tensor]]) -> float:
        total = torch.zeros((), device=parts[0][0].device)
        for points, labels in parts:
            loss = cross_entropy(self.model(points), labels) / len(parts)
            loss.backward()
            total = total + loss
        self.optimizer.step()
        self.optimizer.zero_grad()
        metrics.record(self.run, total, self.learning_rate)
        return total.item()

    @property
    def learning_rate(self) -> float:
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

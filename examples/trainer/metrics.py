from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Step:
    """What is kept of one step of the optimizer."""

    number: int
    loss: Tensor | float
    learning_rate: float


HISTORY: dict[str, list[Step]] = {}


def record(run: str, loss: Tensor | float, learning_rate: float) -> None:
    steps = HISTORY.setdefault(run, [])
    steps.append(Step(len(steps), loss, learning_rate))


def losses(run: str) -> list[float]:
    return [step.loss.item() if isinstance(step.loss, Tensor) else step.loss for step in HISTORY.get(run, [])]


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return (logits.argmax(dim=1) == labels).float().mean().item()

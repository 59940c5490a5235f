from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.data import Dataset, batches
from trainer.metrics import accuracy


@dataclass(frozen=True)
class Evaluation:
    accuracy: float
    confusion: Tensor  # [true class, predicted class], on the CPU


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset, *, classes: int, batch_size: int = 256) -> Evaluation:
    model.eval()
    confusion = torch.zeros(classes * classes, dtype=torch.long)
    weighted = 0.0
    for points, labels in batches(data, batch_size):
        logits = model(points)
        weighted += accuracy(logits, labels) * len(labels)
        cells = labels * classes + logits.argmax(dim=1)
        confusion += torch.bincount(cells, minlength=classes * classes).cpu()
    return Evaluation(weighted / len(data), confusion.view(classes, classes))

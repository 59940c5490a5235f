from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn


@functools.cache
def frequencies(count: int, device: torch.device) -> Tensor:
    """The frequencies of the Fourier features, the same for every model."""
    return math.pi * torch.logspace(0, 3, count, base=2.0, device=device)


class Classifier(nn.Module):
    """Fourier features of a point, then two layers; the second to last output is its embedding."""

    def __init__(self, classes: int, *, width: int = 128, features: int = 8, device: torch.device) -> None:
        super().__init__()
        self.features = features
        self.hidden = nn.Linear(4 * features, width, device=device)
        self.embedding = nn.Linear(width, width, device=device)
        self.head = nn.Linear(width, classes, device=device)

    def embed(self, points: Tensor) -> Tensor:
        waves = (points.unsqueeze(-1) * frequencies(self.features, points.device)).flatten(1)
        hidden = torch.relu(self.hidden(torch.cat([waves.sin(), waves.cos()], dim=1)))
        return self.embedding(hidden)

    def forward(self, points: Tensor) -> Tensor:
        return self.head(torch.relu(self.embed(points)))


@functools.cache
def flops_per_sample(model: nn.Module) -> int:
    """Multiplications and additions of one forward pass. Walks all layers, so it is worked out once a model."""
    return sum(2 * layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear))

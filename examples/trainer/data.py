from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Points in the plane and the spiral arm that each belongs to."""

    points: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return self.labels.shape[0]

    def split(self, first: int) -> tuple[Dataset, Dataset]:
        return Dataset(self.points[:first], self.labels[:first]), Dataset(self.points[first:], self.labels[first:])


def spirals(count: int, arms: int, device: torch.device, *, noise: float = 0.05, seed: int = 0) -> Dataset:
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(arms, (count,), generator=source)
    radius = torch.rand(count, generator=source).sqrt()
    angle = 2 * math.pi * (labels / arms + radius)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    points += noise * torch.randn(points.shape, generator=source)
    return Dataset(points.to(device), labels.to(device))


def batches(data: Dataset, size: int, *, seed: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the data in batches, shuffled where a seed is given; the last one may be smaller."""
    if size < 1:
        raise ValueError(f"a batch of {size} points")
    order = torch.arange(len(data))
    if seed is not None:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    for rows in order.to(data.points.device).split(size):
        yield data.points[rows], data.labels[rows]

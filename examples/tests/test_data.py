from __future__ import annotations

import pytest
import torch

from trainer.data import Dataset, batches, spirals


@pytest.mark.parametrize("arms", [2, 3, 7])
def test_every_arm_has_points(arms: int, device: torch.device) -> None:
    data = spirals(400, arms, device)
    assert data.labels.unique().tolist() == list(range(arms))
    assert data.points.shape == (400, 2)


def test_the_same_seed_gives_the_same_points(device: torch.device) -> None:
    assert torch.equal(spirals(50, 3, device, seed=1).points, spirals(50, 3, device, seed=1).points)


@pytest.mark.parametrize("size", [1, 100, 512, 1000])
def test_batches_cover_the_data_once(size: int, data: Dataset) -> None:
    labels = torch.cat([labels for _, labels in batches(data, size, seed=0)])
    assert labels.sort().values.equal(data.labels.sort().values)


def test_a_batch_has_at_least_one_point(data: Dataset) -> None:
    with pytest.raises(ValueError, match="a batch of 0"):
        next(batches(data, 0))

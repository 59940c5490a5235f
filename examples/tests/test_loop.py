from __future__ import annotations

import pytest
import torch

from trainer import metrics
from trainer.data import Dataset
from trainer.loop import Training
from trainer.model import Classifier


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_loss_falls(model: Classifier, data: Dataset, accumulate: int) -> None:
    run = f"falls-{accumulate}"
    Training(model, run=run).fit(data, epochs=3, batch_size=32, accumulate=accumulate)
    losses = metrics.losses(run)
    assert losses[-1] < losses[0]


def test_the_same_seed_trains_the_same_model(device: torch.device, data: Dataset) -> None:
    trained = []
    for _ in range(2):
        torch.manual_seed(1)
        model = Classifier(3, device=device)
        Training(model).fit(data, epochs=1)
        trained.append(model.head.weight.detach())
    assert torch.equal(*trained)

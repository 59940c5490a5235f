from __future__ import annotations

import pytest
import torch

from trainer.data import Dataset
from trainer.model import Classifier


def test_one_logit_for_each_class(model: Classifier, data: Dataset) -> None:
    assert model(data.points[:5]).shape == (5, 3)


def test_every_weight_gets_a_gradient(model: Classifier, data: Dataset) -> None:
    model(data.points[:5]).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.fixture(scope="class")
def wide(device: torch.device) -> Classifier:
    return Classifier(10, width=1024, device=device).eval()


class TestWideModel:
    @pytest.mark.parametrize("count", [1, 64])
    def test_logits_are_finite(self, wide: Classifier, data: Dataset, count: int) -> None:
        assert wide(data.points[:count]).isfinite().all()

    def test_embeddings_have_its_width(self, wide: Classifier, data: Dataset) -> None:
        assert wide.embed(data.points[:4]).shape == (4, 1024)

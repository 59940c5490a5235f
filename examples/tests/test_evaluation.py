from __future__ import annotations

import pytest
import torch

from trainer.data import Dataset
from trainer.evaluation import Evaluation, evaluate
from trainer.loop import Training
from trainer.model import Classifier


@pytest.fixture(scope="module")
def evaluation(data: Dataset, device: torch.device) -> Evaluation:
    """A training, done once for all tests here, and how well it went."""
    torch.manual_seed(0)
    model = Classifier(3, device=device)
    train, held_out = data.split(384)
    Training(model, run="evaluation").fit(train, epochs=15, batch_size=32)
    return evaluate(model, held_out, classes=3)


def test_it_learns_the_spirals(evaluation: Evaluation) -> None:
    assert evaluation.accuracy > 0.9


def test_the_confusion_counts_every_point(evaluation: Evaluation) -> None:
    assert evaluation.confusion.sum().item() == 128


def test_the_accuracy_is_that_of_the_confusion(evaluation: Evaluation) -> None:
    right = evaluation.confusion.diagonal().sum().item()
    assert evaluation.accuracy == pytest.approx(right / 128)

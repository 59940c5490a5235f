from __future__ import annotations

from pathlib import Path

import torch

from trainer.callbacks import Checkpoints
from trainer.checkpoint import load, save
from trainer.data import Dataset
from trainer.loop import Training
from trainer.model import Classifier


def test_a_loaded_model_predicts_the_same(
    model: Classifier, data: Dataset, device: torch.device, tmp_path: Path
) -> None:
    training = Training(model)
    training.fit(data, epochs=1)
    save(tmp_path / "model.pt", model, training.optimizer)
    loaded = Classifier(3, device=device)
    load(tmp_path / "model.pt", loaded)
    assert torch.equal(loaded(data.points), model(data.points))


def test_the_optimizer_goes_on_where_it_was(model: Classifier, data: Dataset, tmp_path: Path) -> None:
    training = Training(model, learning_rate=0.05)
    training.fit(data, epochs=1)
    save(tmp_path / "model.pt", model, training.optimizer)
    other = Training(model)
    load(tmp_path / "model.pt", model, other.optimizer)
    assert other.learning_rate == 0.05


def test_the_best_epoch_is_saved(model: Classifier, data: Dataset, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "best.pt")
    Training(model).fit(data, epochs=2, callbacks=[checkpoints])
    assert checkpoints.path.stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == ["best.pt"]

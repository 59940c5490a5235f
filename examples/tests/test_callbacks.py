from __future__ import annotations

from trainer.callbacks import Averaging, EarlyStopping, Throughput
from trainer.data import Dataset
from trainer.loop import Training
from trainer.model import Classifier


def test_the_average_lags_behind_the_weights(model: Classifier, data: Dataset) -> None:
    averaging = Averaging(decay=0.9)
    before = model.head.weight.detach().clone()
    Training(model).fit(data, epochs=2, callbacks=[averaging])
    assert isinstance(averaging.model, Classifier)
    moved = (averaging.model.head.weight - before).norm()
    assert 0 < moved < (model.head.weight.detach() - before).norm()


def test_training_stops_when_the_loss_stays(model: Classifier, data: Dataset) -> None:
    stopping = EarlyStopping(patience=2)
    training = Training(model, run="stays", learning_rate=0.0)
    training.fit(data, epochs=50, batch_size=512, callbacks=[stopping])
    assert training.stop


def test_throughput_counts_every_sample(model: Classifier, data: Dataset) -> None:
    throughput = Throughput()
    Training(model).fit(data, epochs=1, callbacks=[throughput])
    assert throughput.operations == 3 * len(data) * 2 * (32 * 128 + 128 * 128 + 128 * 3)
    assert throughput.gflops > 0

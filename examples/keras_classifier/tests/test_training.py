from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from spirals.data import batches
from spirals.evaluation import accuracy, record
from spirals.model import parameter_count

Data = tuple[np.ndarray, np.ndarray]


def test_the_loss_falls(model: keras.Model, data: Data) -> None:
    losses = model.fit(batches(*data, 64), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_an_untrained_model_guesses(model: keras.Model, data: Data) -> None:
    points, labels = data
    assert 0.1 < accuracy(model, tf.constant(points), tf.constant(labels)) < 0.6


def test_logits_of_each_arm(model: keras.Model, data: Data) -> None:
    points, _ = data
    assert record("untrained", model, tf.constant(points)).shape == (256, 3)


def test_parameters(model: keras.Model) -> None:
    assert parameter_count(model) == 2 * 32 + 32 + 32 * 3 + 3


def test_gradients_reach_all_weights(model: keras.Model, data: Data) -> None:
    points, labels = data
    with tf.GradientTape() as tape:
        loss = model.compute_loss(y=tf.constant(labels), y_pred=model(tf.constant(points)))
    gradients = tape.gradient(loss, model.trainable_variables)
    assert all(gradient is not None for gradient in gradients)


def test_a_model_is_saved(model: keras.Model, tmp_path) -> None:
    model.save_weights(tmp_path / "model.weights.h5")
    assert (tmp_path / "model.weights.h5").exists()

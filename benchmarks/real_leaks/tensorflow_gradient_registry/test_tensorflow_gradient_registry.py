"""Each model that Keras fits stays in TensorFlow's registry of gradients, with its variables.

https://github.com/tensorflow/tensorflow/issues/97697
"""

import keras
import numpy as np


def test_loss_is_finite():
    model = keras.Sequential([keras.layers.Input((10,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    history = model.fit(np.ones((8, 10)), np.ones((8, 1)), verbose=0)
    assert np.isfinite(history.history["loss"]).all()

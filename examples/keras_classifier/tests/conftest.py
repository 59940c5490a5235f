from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

from spirals.data import spirals
from spirals.model import classifier
from spirals.search import NeighbourIndex

ARMS = 3
Data = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="session")
def data() -> Data:
    return spirals(256, ARMS)


@pytest.fixture
def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    return classifier(ARMS)


@pytest.fixture(scope="module")
def index() -> Iterator[NeighbourIndex]:
    points, _ = spirals(200_000, ARMS)
    index = NeighbourIndex("points", tf.constant(points))
    yield index
    index.close()

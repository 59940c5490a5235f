from __future__ import annotations

import jax
import pytest

from jaxnet.model import Params, create


@pytest.fixture
def params() -> Params:
    return create(jax.random.key(0))


@pytest.fixture(scope="session")
def points() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (128, 2))


@pytest.fixture(scope="session")
def labels(points: jax.Array) -> jax.Array:
    return (points[:, 0] * points[:, 1] > 0).astype("float32")

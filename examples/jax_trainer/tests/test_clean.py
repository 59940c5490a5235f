from __future__ import annotations

import functools

import jax
import numpy as np

from jaxnet.loop import step, train
from jaxnet.model import Params, predict


def test_it_learns(params: Params, points: jax.Array, labels: jax.Array) -> None:
    _, losses = train(params, points, labels)
    assert losses[-1] < losses[0]


def test_shapes(params: Params, points: jax.Array) -> None:
    assert predict(params, points).shape == (128, 1)


def test_donated_parameters(params: Params, points: jax.Array, labels: jax.Array) -> None:
    update = functools.partial(jax.jit, donate_argnums=0)(step.__wrapped__)
    params, _ = update(params, points, labels)
    assert np.isfinite(np.asarray(params["out"])).all()


def test_vectorised(params: Params, points: jax.Array) -> None:
    one_by_one = jax.vmap(lambda point: predict(params, point[None]))(points)
    np.testing.assert_allclose(one_by_one[:, 0, 0], predict(params, points)[:, 0], rtol=1e-4, atol=1e-5)

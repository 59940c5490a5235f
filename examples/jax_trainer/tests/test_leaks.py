from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxnet.loop import train_and_record
from jaxnet.model import Params, Scaler, predict, pretrained

SEEN: list[jax.Array] = []


def test_losses_are_recorded(params: Params, points: jax.Array, labels: jax.Array) -> None:
    """Leaks: each run adds an array to `jaxnet.loop.HISTORY`."""
    assert train_and_record(params, points, labels).keys() == params.keys()


def test_scaled(points: jax.Array) -> None:
    """Leaks: JAX's caches keep each `Scaler`, with its table."""
    assert Scaler(points)(points).shape == points.shape


def test_pretrained_parameters() -> None:
    """Leaks 4 MiB once: later tests do without them."""
    assert pretrained("small")["embedding"].shape == (1024, 1024)


def test_activations(params: Params, points: jax.Array) -> None:
    """Noted: what is stored within the traced function is a tracer, of no use afterwards."""

    @jax.jit
    def forward(points: jax.Array) -> jax.Array:
        hidden = jnp.tanh(points @ params["hidden"])
        SEEN.append(hidden)
        return predict(params, points)

    assert forward(points).shape == (128, 1)

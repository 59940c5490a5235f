from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

Params = dict[str, jax.Array]

PRETRAINED: dict[str, Params] = {}


def create(key: jax.Array, width: int = 64) -> Params:
    first, second = jax.random.split(key)
    return {
        "hidden": jax.random.normal(first, (2, width)) * 0.5,
        "out": jax.random.normal(second, (width, 1)) * 0.1,
    }


def predict(params: Params, points: jax.Array) -> jax.Array:
    return jnp.tanh(points @ params["hidden"]) @ params["out"]


def pretrained(name: str) -> Params:
    """Load once, and keep for the process: 4 MiB."""
    if name not in PRETRAINED:
        PRETRAINED[name] = {"embedding": jnp.ones((1024, 1024))}
    return PRETRAINED[name]


class Scaler:
    """A jitted method: JAX keeps `self`, which has no `__eq__` by value, as a static argument."""

    def __init__(self, points: jax.Array) -> None:
        self.mean = points.mean(axis=0)
        self.table = jnp.zeros((256, 256))

    @partial(jax.jit, static_argnums=0)
    def __call__(self, points: jax.Array) -> jax.Array:
        return points - self.mean + self.table[0, 0]

"""A module that is unpickled stays in the set of modules that are being initialised: found in equinox's own tests."""

import pickle

import equinox
import jax


class Scale(equinox.Module):
    factor: jax.Array


def test_round_trip():
    scale = Scale(jax.numpy.full((64, 64), 2.0))
    assert pickle.loads(pickle.dumps(scale)).factor.shape == (64, 64)

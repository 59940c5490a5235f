"""Each function that `odeint` is given stays in JAX's caches, with the arrays that it closes over.

https://github.com/jax-ml/jax/issues/17232
"""

import jax.numpy as jnp
from jax.experimental.ode import odeint


def test_solution_is_finite():
    forcing = jnp.ones((256, 256))

    def vector_field(state, time):
        return -state + forcing[0, :4] * time

    states = odeint(vector_field, jnp.ones(4), jnp.linspace(0.0, 1.0, 4))
    assert jnp.isfinite(states).all()

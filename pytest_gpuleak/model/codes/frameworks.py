"""Codes of what other frameworks keep. Their inspectors stand in `explain.hints`: `jax`, `graphs` and `values`."""

from __future__ import annotations

from typing import Final

from pytest_gpuleak.model.codes.entry import Code

FRAMEWORKS: Final = (
    Code(
        "GL801",
        "tracer kept by a global",
        "A function that JAX traces stores an intermediate value outside of itself.",
        """
          import jax

        - SEEN = []
        -

          def test_step():
              @jax.jit
              def step(x):
                  y = x * 2
        -         SEEN.append(y)
                  return y

        -     step(1.0)
        +     assert step(1.0) == 2
        """,
        """
        While JAX traces a function, its values are tracers: they stand for arrays and have none. A tracer that is stored
        keeps the trace alive, and using it later raises `UnexpectedTracerError`.
        """,
        "Return the value from the function, and store the result. `jax.checking_leaks()` raises where a tracer escapes.",
    ),
    Code(
        "GL802",
        "static argument kept by JAX's caches",
        "A jitted method: its `self`, with all arrays of the instance, is a static argument.",
        """
        - import functools
        -
          import jax
          import jax.numpy as jnp


        - class Model:
        -     def __init__(self):
        -         self.weight = jnp.ones((64, 64))
        -
        -     @functools.partial(jax.jit, static_argnums=0)
        -     def __call__(self, x):
        -         return self.weight @ x
        + @jax.jit
        + def apply(weight, x):
        +     return weight @ x


          def test_model():
        -     Model()(jnp.ones(64))
        +     apply(jnp.ones((64, 64)), jnp.ones(64))
        """,
        """
        JAX keeps each static argument as the key of a compiled program. An instance that compares by identity is a new key
        each time, so each one stays, with its arrays.
        """,
        """
        Pass the arrays as arguments, or give the class `__eq__` and `__hash__` by value. Where neither can be done, call
        `jax.clear_caches()` in teardown.
        """,
    ),
    Code(
        "GL803",
        "jitted function kept with its closure",
        "A function is jitted anew for each model and stored, and closes over the model's arrays.",
        """
          import jax
          import jax.numpy as jnp

        - STEPS = []
        +
        + @jax.jit
        + def step(weight, x):
        +     return weight @ x


          def test_step():
        -     weight = jnp.ones((64, 64))
        -     step = jax.jit(lambda x: weight @ x)
        -     step(jnp.ones(64))
        -     STEPS.append(step)
        +     step(jnp.ones((64, 64)), jnp.ones(64))
        """,
        "The jitted function keeps what it closes over, and its compiled program, in which the arrays may be constants.",
        "Pass arrays as arguments, and jit a function once, at module level.",
    ),
    Code(
        "GL804",
        "pullback of jax.vjp kept",
        "The function that `jax.vjp` returned is stored.",
        """
          import jax
          import jax.numpy as jnp

        - PULLBACKS = []
        -

          def test_gradient():
        -     _, pullback = jax.vjp(jnp.sin, jnp.ones((64, 64)))
        -     PULLBACKS.append(pullback)
        +     value, pullback = jax.vjp(jnp.sin, jnp.ones((64, 64)))
        +     (gradient,) = pullback(value)
        +     assert gradient.shape == (64, 64)
        """,
        "It keeps what the forward pass has saved for the backward pass, as an autograd graph does.",
        "Call it within the test, and keep its results alone.",
    ),
    Code(
        "GL805",
        "model kept by TensorFlow's gradient registry",
        "Each run fits a Keras model of its own in graph mode.",
        """
          import numpy as np
          import tensorflow as tf


          def test_fit():
              model = tf.keras.Sequential([tf.keras.layers.Dense(4)])
        -     model.compile(loss="mse")
        +     model.compile(loss="mse", run_eagerly=True)
              model.fit(np.ones((4, 4)), np.ones((4, 4)), verbose=0)
        """,
        """
        Tracing a training step registers gradient functions by name in a registry of the process, and none is ever taken
        out. They refer to the graph and to the model's arrays (tensorflow issue 97697).
        """,
        """
        Fit one model in a wider fixture, compile with `run_eagerly=True`, or accept it with
        `@pytest.mark.allow_gpu_leak(reason="...")`.
        """,
    ),
    Code(
        "GL806",
        "tensors captured by a tf.function",
        "A traced function that outlives the test has captured tensors of its surroundings.",
        """
          import tensorflow as tf

        - FUNCTIONS = {}
        -

          def test_function():
              weight = tf.Variable(tf.ones((1024, 1024)))

              @tf.function
              def apply(x):
                  return weight * x

              apply(tf.constant(2.0))
        -     FUNCTIONS["apply"] = apply
        """,
        "Each trace keeps the eager tensors and variables that it met, for as long as the function lives.",
        "Pass them as arguments, or make the function for each test.",
    ),
    Code(
        "GL807",
        "arrays kept by Keras's global state",
        "Keras keeps something for its session: a random seed, a symbolic graph, a learning phase.",
        """
        + import pytest
          import tensorflow as tf
          from keras.src.backend.common import global_state


        + @pytest.fixture(autouse=True)
        + def cleared():
        +     yield
        +     tf.keras.backend.clear_session()
        +
        +
          def test_state():
              global_state.set_global_attribute("table", tf.ones((1024, 1024)))
        """,
        "The state belongs to the process, and Keras clears it only when it is asked to.",
        """
        Call `tf.keras.backend.clear_session()` in teardown, or in the hook `pytest_gpuleak_settle` of a conftest.py. The
        plugin never calls it: models that are in use may break.
        """,
    ),
    Code(
        "GL808",
        "tensors recorded by a kept GradientTape",
        "A gradient tape is stored, or kept by something that is.",
        """
          import tensorflow as tf

        - TAPES = []
        -

          def test_gradient():
              weight = tf.Variable(tf.ones((64, 64)))
        -     with tf.GradientTape(persistent=True) as tape:
        +     with tf.GradientTape() as tape:
                  loss = tf.reduce_sum(weight * weight)
        -     tape.gradient(loss, weight)
        -     TAPES.append(tape)
        +     assert tape.gradient(loss, weight).shape == (64, 64)
        """,
        "A tape keeps every tensor that it has recorded; a persistent one also after `gradient()` was called.",
        "Store the gradients, and let go of the tape (`del tape`).",
    ),
    Code(
        "GL809",
        "lazy array kept before it is evaluated",
        "An MLX array whose values nothing has asked for is stored.",
        """
          import mlx.core as mx

          LOSSES = []


          def test_loss():
        -     LOSSES.append(mx.sum(mx.ones((64, 64)) * 2))
        +     LOSSES.append(mx.sum(mx.ones((64, 64)) * 2).item())
        """,
        "MLX computes an array when its values are asked for, and keeps the inputs of the computation until then.",
        "Call `mx.eval()` on what is stored, or store `.item()`.",
    ),
    Code(
        "GL810",
        "file that stays mapped",
        "An array over a mapped file (`numpy.memmap`, `np.load(mmap_mode=...)`, safetensors) is stored.",
        """
          import numpy as np

        - OPENED = []
        -

          def test_read(tmp_path):
              np.save(tmp_path / "table.npy", np.ones(2**20))
        -     OPENED.append(np.load(tmp_path / "table.npy", mmap_mode="r"))
        +     table = np.load(tmp_path / "table.npy", mmap_mode="r")
        +     assert table[0] == 1
        """,
        "The file stays open and mapped for as long as an array over it lives, views included.",
        "Let go of the array in teardown, or keep a copy (`np.array(...)`) of what is needed.",
    ),
    Code(
        "GL811",
        "a few numbers keep a large array",
        "A slice of a large NumPy array is stored.",
        """
          import numpy as np

          FIRST = []


          def test_batch():
              batch = np.random.default_rng(0).random(2**20)
        -     FIRST.append(batch[:10])
        +     FIRST.append(batch[:10].copy())
        """,
        "A slice is a view: it refers to the whole array that it was taken from, however small it is.",
        "Copy what is kept: `batch[:10].copy()`.",
    ),
)

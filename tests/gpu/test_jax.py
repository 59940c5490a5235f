"""JAX on a CUDA device: its counters, and who holds what. Skipped, with the reason, without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gpu.suites import answer_of, planted

if TYPE_CHECKING:
    from tests.conftest import Runner

MIB = 1 << 20
ASKS = "import os; os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'; import jax; print(jax.default_backend())"

SUITE = """
    import os

    os.environ.update(SETTINGS)

    import jax
    import jax.numpy as jnp
    import numpy as np
    import pytest

    KEPT, PULLBACKS, JITTED, DONATED, TRACERS, LENT, TABLE = [], [], [], [], [], [], {}

    def test_first_use():
        (jnp.ones((256, 256)) @ jnp.ones((256, 256))).sum().block_until_ready()

    def test_list():
        KEPT.append(jnp.ones((256, 256)))

    def test_pullback():
        PULLBACKS.append(jax.vjp(lambda x: jnp.sin(x).sum(), jnp.ones((256, 256)))[1])

    def test_jitted_closure():
        weights = jnp.ones((256, 256))
        apply = jax.jit(lambda x: x @ weights)
        apply(jnp.ones((4, 256))).block_until_ready()
        JITTED.append(apply)

    def test_retained():
        if not TABLE:
            TABLE["weights"] = jnp.ones((1024, 1024))

    def test_lent_to_torch():
        torch = pytest.importorskip("torch")
        LENT.append(torch.from_dlpack(jnp.ones((512, 512))))

    def test_lent_by_torch():
        torch = pytest.importorskip("torch")
        LENT.append(jnp.from_dlpack(torch.ones(512, 512, device="cuda:0")))

    def test_donated():
        step = jax.jit(lambda x: x + 1, donate_argnums=0)
        values = jnp.ones((256, 256))
        step(values).block_until_ready()
        DONATED.append(values)

    def test_tracer():
        @jax.jit
        def step(x):
            TRACERS.append(x)
            return x * 2

        step(jnp.ones(3))

    def test_random():
        jax.random.normal(jax.random.key(1), (1000,)).sum().block_until_ready()

    def test_gradient():
        jax.grad(lambda x: (x**2).sum())(jnp.ones((64, 64)))

    def test_convolution():
        jax.lax.conv(jnp.ones((1, 3, 32, 32)), jnp.ones((8, 3, 3, 3)), (1, 1), "SAME").block_until_ready()

    def test_solvers():
        jnp.linalg.svd(jnp.ones((32, 32)) + jnp.eye(32))
        jnp.linalg.solve(jnp.eye(32) * 2, jnp.ones(32))

    def test_transforms():
        jnp.fft.fft2(jnp.ones((64, 64))).block_until_ready()

    def test_scan():
        jax.lax.scan(lambda carry, x: (carry + x, carry), 0.0, jnp.ones(100))

    def test_copies():
        np.asarray(jnp.ones((512, 512)))
        jax.device_get(jax.device_put(np.ones((256, 256), "f4")))

    def test_under_way():
        values = jnp.ones((2048, 2048))
        for _ in range(10):
            values = values @ values * 0.001
"""
LEAKED = {
    "test_list": ("growing", 256 << 10, "test_it.KEPT"),
    "test_pullback": ("growing", 256 << 10, "test_it.PULLBACKS"),
    "test_jitted_closure": ("growing", 256 << 10, "test_it.JITTED"),
    "test_retained": ("retained", 4 * MIB, "test_it.TABLE"),
    "test_lent_to_torch": ("growing", MIB, "test_it.LENT"),
    "test_lent_by_torch": ("growing", MIB, "test_it.LENT"),
}
SETTINGS = {
    "by need": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    # As by default, which takes three quarters of the device: other tests may run beside this one.
    "at once": {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".2"},
}


@pytest.fixture(scope="module")
def jax_device() -> None:
    """Skips without JAX or a device, which another process is asked for."""
    if answer_of(ASKS) != "gpu":
        pytest.skip("JAX finds no GPU on this machine")


@pytest.mark.usefixtures("jax_device")
@pytest.mark.parametrize("takes", SETTINGS)
def test_leaks_and_clean_tests_on_a_device(run: Runner, takes: str) -> None:
    found = run(SUITE.replace("SETTINGS", repr(SETTINGS[takes])), apart=True)
    assert planted(found) == LEAKED
    others = {name: verdict for name, verdict in found.verdicts.items() if name not in LEAKED}
    assert others.pop("test_tracer") == "noted"
    assert set(others.values()) == {"clean"}

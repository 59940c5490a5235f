"""JAX's tests are skipped where it is not installed: `scripts/test-jax` installs it into an environment of its own."""

from __future__ import annotations

import importlib.util

import pytest

HERE = __name__.rpartition(".")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("jax") is not None:
        return
    skip = pytest.mark.skip(reason="jax is not installed: scripts/test-jax runs these tests")
    for item in items:
        if getattr(getattr(item, "module", None), "__name__", "").startswith(f"{HERE}."):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of their own have four devices that share the host's memory."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")

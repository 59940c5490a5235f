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


AMPLE_TIME = """
from pytest_gpuleak.engine.confirm import array_looks
from pytest_gpuleak.explain import search

array_looks.EXPLAIN_BUDGET_S = search.BUDGET_S = 300.0
"""


@pytest.fixture(autouse=True)
def time_that_a_loaded_machine_takes(request: pytest.FixtureRequest) -> None:
    """Let the searches end: in a conftest.py, since the runs are processes of their own."""
    if "run" in request.fixturenames:
        request.getfixturevalue("run")  # writes that file
        conftest = request.getfixturevalue("pytester").path / "conftest.py"
        conftest.write_text(conftest.read_text("utf-8") + AMPLE_TIME, encoding="utf-8")


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of their own have four devices that share the host's memory."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")

"""What every test of this project shares."""

from __future__ import annotations

import importlib.util
import sys

import pytest

pytest_plugins = ["pytester"]
if sys.platform in ("emscripten", "wasi"):  # scripts/test-wasm
    pytest_plugins.append("tests.support.unthreaded")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs torch where there is none; it is looked for, not imported, since some tests watch imports."""
    if importlib.util.find_spec("torch") is None:
        skip = pytest.mark.skip(reason="torch is not installed for this Python")
        for item in items:
            if item.get_closest_marker("torch"):
                item.add_marker(skip)

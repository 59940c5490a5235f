"""What every test of this project shares."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

pytest_plugins = ["pytester"]
if sys.platform in ("emscripten", "wasi"):  # scripts/test-wasm
    pytest_plugins.append("tests.support.unthreaded")

FRAMEWORKS = {"torch": "torch", "tensorflow": "TensorFlow"}
"""Frameworks by the marker of the tests that need them, which is the package's name."""

WRITTEN_OUT = ("torch", "interpreter", "newest")
"""Markers by which `scripts/run_parts.py` chooses files: a file writes them out where one of its tests has them."""


class PackageAsWritten:
    """Finds the package before pytest's hook, which rewrites asserts: a second a process, and no test shows one of its."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        """Find a module of the package as Python would."""
        return PathFinder.find_spec(name, path) if name.startswith("pytest_gpuleak.") else None


sys.meta_path.insert(0, PackageAsWritten)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a framework that is not there; it is looked for, not imported, since some tests watch imports."""
    for framework, name in FRAMEWORKS.items():
        if importlib.util.find_spec(framework) is None:
            skip = pytest.mark.skip(reason=f"{name} is not installed for this Python")
            for item in items:
                if item.get_closest_marker(framework):
                    item.add_marker(skip)
    named = {(item.path, name): item for item in items for name in WRITTEN_OUT if item.get_closest_marker(name)}
    for (path, name), item in named.items():
        if f"mark.{name}" not in path.read_text("utf-8"):
            raise pytest.UsageError(f"{item.nodeid} has the marker {name}, which its file does not write out")

"""Which packages are those of installed plugins."""

from __future__ import annotations

import types
from typing import Any

import pytest

from pytest_gpuleak.session.pytest_internals import plugin_packages


def test_the_packages_of_installed_plugins_alone(pytestconfig: pytest.Config) -> None:
    manager: Any = pytest.PytestPluginManager()
    module = types.ModuleType("odd_plugin.hooks")
    manager.register(module)
    manager.register(types.ModuleType("conftest"))
    assert plugin_packages(types.SimpleNamespace(pluginmanager=manager)) == set()  # type: ignore[arg-type]
    manager._plugin_distinfo += [(module, None), (object(), None)]
    assert plugin_packages(types.SimpleNamespace(pluginmanager=manager)) == {"odd_plugin"}  # type: ignore[arg-type]
    assert "_pytest" not in plugin_packages(pytestconfig)

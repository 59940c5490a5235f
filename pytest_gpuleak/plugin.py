"""The pytest entry point: nothing but wiring. Installed and off, this module and what it imports are all that is loaded."""

from __future__ import annotations

import pytest

from pytest_gpuleak import hookspecs
from pytest_gpuleak.session.config import options
from pytest_gpuleak.session.config.given_values import is_enabled, is_switched_off
from pytest_gpuleak.session.features.budgets.markers import BudgetMarkers


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options and ini names, and the hooks that a conftest.py may implement."""
    options.add_options(parser)
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Watch the collector before a conftest.py can bind its functions."""
    if is_enabled(early_config):
        from pytest_gpuleak.session.run import watch_collector

        watch_collector(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and, where it is switched on, the session. Raises pytest.UsageError for bad options."""
    options.register_markers(config)
    if is_enabled(config):
        from pytest_gpuleak.session.run import begin_session

        begin_session(config)
    if not is_switched_off(config):
        config.pluginmanager.register(BudgetMarkers(config), "gpuleak-budget-markers")

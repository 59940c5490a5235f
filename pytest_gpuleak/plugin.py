"""The pytest entry point: nothing but wiring. Installed and off, this module and `policy` are all that is imported."""

from __future__ import annotations

import pytest

from pytest_gpuleak import policy


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options and ini names, and the hooks that a conftest.py may implement."""
    from pytest_gpuleak import hookspecs

    policy.add_options(parser)
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Watch the collector before a conftest.py can bind its functions."""
    if policy.is_enabled(early_config):
        from pytest_gpuleak.session import watch_collector

        watch_collector(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and, where it is switched on, the session. Raises pytest.UsageError for bad options."""
    policy.register_markers(config)
    if policy.is_enabled(config):
        from pytest_gpuleak.session import Session

        config.pluginmanager.register(Session(config, policy.read_settings(config)), "gpuleak-session")

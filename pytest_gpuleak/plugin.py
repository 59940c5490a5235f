"""The pytest entry point: nothing but wiring. Installed and off, this module and `options` are all that is imported."""

from __future__ import annotations

import pytest

from pytest_gpuleak import options


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options and ini names, and the hooks that a conftest.py may implement."""
    from pytest_gpuleak import hookspecs

    options.add_options(parser)
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Watch the collector before a conftest.py can bind its functions."""
    if options.is_enabled(early_config):
        from pytest_gpuleak.session import watch_collector

        watch_collector(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and, where it is switched on, the session. Raises pytest.UsageError for bad options."""
    options.register_markers(config)
    if options.is_enabled(config):
        from pytest_gpuleak.policy import read_settings
        from pytest_gpuleak.session import Session

        config.pluginmanager.register(Session(config, read_settings(config)), "gpuleak-session")

"""Wire the plugin into pytest. When it is off, only this module and its imports are loaded."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Unchecked:
    """Say that nothing is checked, where the interpreter lacks what the plugin is made of; the tests run as ever."""

    def __init__(self, error: Exception) -> None:
        python = f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"
        why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        self._text = f"gpu-leak: nothing is checked: {python} is not known ({why})"

    def pytest_report_header(self) -> str:
        """Say so before the tests."""
        return self._text

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say so after them."""
        terminalreporter.write_line(self._text, yellow=True)


def _is_unknown() -> bool:
    """Tell whether the plugin was never tried on this interpreter."""
    from pytest_gpuleak.heap.collector_rules import NEWEST

    return sys.implementation.name != "cpython" or sys.version_info[:2] > NEWEST


@contextmanager
def _no_rewriting() -> Iterator[None]:
    """Keep pytest's rewriting of asserts away from what is imported within: it would double the time of the start."""
    hooks = [(place, hook) for place, hook in enumerate(sys.meta_path) if isinstance(hook, AssertionRewritingHook)]
    for place, _ in reversed(hooks):
        del sys.meta_path[place]
    try:
        yield
    finally:
        for place, hook in hooks:
            sys.meta_path.insert(place, hook)


with _no_rewriting():
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
        try:
            with _no_rewriting():
                from pytest_gpuleak.session.run import watch_collector
        except Exception as error:
            if not _is_unknown():
                raise
            early_config.pluginmanager.register(_Unchecked(error), "gpuleak-unchecked")
        else:
            watch_collector(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and, if switched on, the session. Raises pytest.UsageError for bad options."""
    options.register_markers(config)
    if is_enabled(config) and not config.pluginmanager.hasplugin("gpuleak-unchecked"):
        with _no_rewriting():
            from pytest_gpuleak.session.run import begin_session

        begin_session(config)
    if not is_switched_off(config):
        config.pluginmanager.register(BudgetMarkers(config), "gpuleak-budget-markers")

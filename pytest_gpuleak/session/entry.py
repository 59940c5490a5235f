"""Give pytest what it needs in any run, and load the rest where the plugin is switched on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak import hookspecs
from pytest_gpuleak.session import options

if TYPE_CHECKING:
    from collections.abc import Generator

_REPORT = "--gpu-leak-report"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options and ini names, and the hooks that a conftest.py may implement."""
    options.add_options(parser)
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Watch the collector before a conftest.py can bind its functions, and devices before one can initialise any."""
    if not options.is_switched_off(early_config) and _read_value(early_config, ""):
        try:
            from pytest_gpuleak.session.run import watch_process
        except Exception as error:
            if not _is_unknown():
                raise
            python = f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            said = _Said(f"gpu-leak: nothing is checked: {python} is not known ({why})")
            early_config.pluginmanager.register(said, "gpuleak-unchecked")
        else:
            watch_process(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and, if switched on, the session. Raises pytest.UsageError for bad options."""
    options.register_markers(config)
    if options.is_switched_off(config):
        return
    if _read_value(config, ""):
        if not config.pluginmanager.hasplugin("gpuleak-unchecked"):
            from pytest_gpuleak.session.run import begin_session

            begin_session(config)
    elif any(str(argument).startswith(_REPORT) for argument in config.invocation_params.args):
        config.pluginmanager.register(_Said(f"gpu-leak: no report is written: {_REPORT} needs --gpu-leak"))
    for name in ("max_mb", "estimate"):
        _read_value(config, name)  # raises now, rather than after the collection
    if any(options.is_given(config, name) for name in ("peaks", "peaks_baseline", "update_peaks")):
        from pytest_gpuleak.session.features.peaks.run import open_peaks

        peaks = open_peaks(config)
        if peaks is not None:
            config.pluginmanager.register(peaks, "gpuleak-peak-run")
    if getattr(config.option, "dist", "no") != "no":
        from pytest_gpuleak.session.features.budgets.over_budget import WorkerHooks

        config.pluginmanager.register(WorkerHooks(), "gpuleak-workers")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, object, object]:
    """Load budgets if a test is left that has one. Raises pytest.UsageError for a marker that is not accepted."""
    result = yield
    if not options.is_switched_off(config):
        default = _read_value(config, "max_mb")
        if default is not None or any(options.BUDGET_MARKER in item.keywords for item in items):
            from pytest_gpuleak.session.features.budgets.hooks import hold_to_budgets

            hold_to_budgets(config, items, default, estimate=bool(_read_value(config, "estimate")))
        if any(options.HOST_BUDGET_MARKER in item.keywords for item in items):
            from pytest_gpuleak.session.features.budgets.host import hold_to_host_budgets

            hold_to_host_budgets(config, items)
        peaks = config.pluginmanager.get_plugin("gpuleak-peak-run")
        if peaks is not None and not config.option.collectonly:
            peaks.hold_tests()  # after the budgets, whose re-run may have told a test's peak
    return result


def _read_value(config: pytest.Config, name: str) -> Any:
    """Read the value of an option by `given_values`, which is loaded only where one is given."""
    if not options.is_given(config, name):
        return None
    from pytest_gpuleak.session.config.given_values import read_value

    return read_value(config, name)


class _Said:
    """Say what is not done: on an interpreter that lacks what the plugin is made of, say, the tests run as ever."""

    def __init__(self, text: str) -> None:
        self._text = text

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

"""The pytest entry point: nothing but wiring. Installed and off, this module and what it imports are all that is loaded."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from os.path import isfile, join
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class OwnModules:
    """Context in which the modules of this package are found before pytest's hook finds them, and no others.

    pytest rewrites the asserts of each plugin it finds by an entry point, and reads what it has rewritten through a
    Python file object (`_read_pyc`, _pytest/assertion/rewrite.py): half of what the check took at the start of a run.
    What it would say of an assert that fails in here is of no use to a user.
    """

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *error: object) -> None:
        # For as long alone as it is of use: each import asks it, and torch's brings about a thousand others.
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002 - the signature of a finder
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if not name.startswith("pytest_gpuleak.") or not path:
            return None
        place = join(path[0], name.rpartition(".")[2])  # noqa: PTH118 - a Path would take longer than all of it
        for file, folders in ((f"{place}.py", None), (join(place, "__init__.py"), [place])):  # noqa: PTH118
            if isfile(file):  # noqa: PTH113
                return spec_from_file_location(
                    name, file, loader=SourceFileLoader(name, file), submodule_search_locations=folders
                )
        return None


with OwnModules():
    from pytest_gpuleak import hookspecs
    from pytest_gpuleak.session.config import options
    from pytest_gpuleak.session.hooks import Hooks


def __dir__() -> list[str]:
    """See `Hooks`: this module is registered too."""
    return [name for name in globals() if name.startswith("pytest_")]


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options and ini names, and the hooks that a conftest.py may implement."""
    options.add_options(parser)
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Watch the collector before a conftest.py can bind its functions."""
    if options.is_enabled(early_config):
        with OwnModules():
            from pytest_gpuleak.session.run import watch_collector

        watch_collector(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and, where it is switched on, the session. Raises pytest.UsageError for bad options."""
    options.register_markers(config)
    if options.is_enabled(config):
        with OwnModules():
            from pytest_gpuleak.session.run import Session, settings_of

            session = Session(config, settings_of(config))
        config.pluginmanager.register(session, "gpuleak-session")
    if not options.command_line(config, "gpu_leak_off"):
        config.pluginmanager.register(_Budgets(config), "gpuleak-budget-markers")


class _Budgets(Hooks):
    """Looks for budgets once the tests are known, and imports what they take only if there are any.

    Args:
        config: pytest's config. Raises pytest.UsageError for a bad `--gpu-leak-max-mb`.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._default: int | None = None
        name = "gpu_leak_max_mb"
        if options.command_line(config, name) is not None or options.ini_value(config, name) is not None:
            from pytest_gpuleak.session.config.settings import read_budget

            self._default = read_budget(config)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Raises pytest.UsageError for a marker that is not accepted, before any test runs."""
        if self._default is not None or _has_marker(items, "max_gpu_mb"):
            from pytest_gpuleak.session.features.budgets.hooks import hold_to_budgets

            hold_to_budgets(self._config, items, self._default)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take what an xdist worker could not check. Raises pytest.UsageError for a marker that it found bad."""
        output = getattr(node, "workeroutput", None) or {}
        if options.USAGE_ERROR_KEY in output:
            raise pytest.UsageError(output[options.USAGE_ERROR_KEY])
        if output.get(options.UNCHECKED_BUDGETS_KEY):
            from pytest_gpuleak.session.features.budgets.hooks import add_worker

            add_worker(self._config, output[options.UNCHECKED_BUDGETS_KEY])


def _has_marker(items: list[pytest.Item], name: str) -> bool:
    """Whether a test, or a class or module of one, has a marker: each looked at once, in under a microsecond a test."""
    seen: set[int] = set()
    for item in items:
        node: pytest.Item | pytest.Collector | None = item
        while node is not None and id(node) not in seen:
            seen.add(id(node))
            for mark in node.own_markers:
                if mark.name == name:
                    return True
            node = node.parent
    return False

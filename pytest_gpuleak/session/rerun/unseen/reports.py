"""Log no report of a re-run, and keep it from plugins that record reports."""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.source_files import is_user_file
from pytest_gpuleak.session.rerun.unseen.restoring import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

SWALLOWED = ("pytest_runtest_logreport", "pytest_exception_interact", "pytest_assertion_pass")
"""Hooks that no plugin is called for. Sub-tests log their reports themselves, and request a debugger (`--pdb`)."""


@contextlib.contextmanager
def unreported(item: pytest.Item) -> Iterator[None]:
    """Log no report and record no warning of the re-run.

    pytest and installed plugins make reports: some (pytest-check) turn what a test has noted into a failure there.
    Hooks of the user's `conftest.py`, which may collect results, are not called.
    """
    manager, hooks = item.config.pluginmanager, item.config.hook
    subset = manager.subset_hook_caller
    users = [impl.plugin for impl in hooks.pytest_runtest_makereport.get_hookimpls() if _is_users(impl, item)]
    # Use pluggy's own callers: a plugin that lists its hooks during the re-run reads their implementations.
    replacements: dict[str, Any] = {name: subset(name, manager.get_plugins()) for name in SWALLOWED}
    replacements["pytest_runtest_makereport"] = subset("pytest_runtest_makereport", users)

    def subset_but_silent(name: str, remove_plugins: Any) -> Any:
        return replacements[name] if name in replacements else subset(name, remove_plugins)

    # An item below a conftest.py uses a proxy that the plugin manager creates each time.
    with (
        replaced(vars(hooks), replacements),
        replaced(vars(manager), {"subset_hook_caller": subset_but_silent}),
        warnings.catch_warnings(record=True),
    ):
        yield


def _is_users(impl: Any, item: pytest.Item) -> bool:
    code = getattr(impl.function, "__code__", None)
    if code is None:
        return False
    own = impl.function.__module__.startswith(("pytest_gpuleak.", "_pytest."))  # pytest may be installed anywhere
    return not own and is_user_file(code.co_filename, str(item.config.rootpath))


def failed_subtests(item: pytest.Item) -> dict[str, int]:
    """Return pytest's counts of failed sub-tests, which fail a test when its call's report is logged."""
    module = sys.modules.get("_pytest.subtests")  # pytest 9
    key: Any = getattr(module, "failed_subtests_key", None)
    counts: dict[str, int] = {} if key is None else item.config.stash.get(key, {})
    return counts

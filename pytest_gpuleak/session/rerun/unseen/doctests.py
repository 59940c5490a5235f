"""Run a doctest again: restore its names, which `doctest.DebugRunner.run` clears when it has passed."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.session.rerun.unseen.restoring import Restore, all_of, keep_mapping, keep_names

if TYPE_CHECKING:
    import pytest

RUNNER_NAMES = ("tries", "failures", "skips", "test", "optionflags", "original_optionflags", "debugger")
"""Counts and state of a `doctest.DocTestRunner`, which all doctests of a module share."""


def revive(item: pytest.Item) -> Restore:
    """Give a doctest its module's names, a copy as `doctest.DocTestFinder` makes it, for the re-run only."""
    test: Any = vars(item)["dtest"]
    runner: Any = vars(item)["runner"]
    results = [value for name in ("_name2ft", "_stats") if type(value := vars(runner).get(name)) is dict]
    restore = all_of([*map(keep_mapping, [test.globs, *results]), keep_names(vars(runner), RUNNER_NAMES)])
    if "__name__" not in test.globs:
        test.globs.update(_names_of(test))
    return restore


def _names_of(test: Any) -> dict[str, Any]:
    """Return the module's names; a text file has none but ``__name__``."""
    parts = test.name.split(".")
    for length in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:length]))
        if type(module) is types.ModuleType and _is_of(module, test.filename):
            return {"__name__": "__main__", **vars(module)}
    return {"__name__": "__main__"}


def _is_of(module: types.ModuleType, filename: str | None) -> bool:
    source = vars(module).get("__file__")
    if filename is None or type(source) is not str:
        return False
    return source == filename or source.removesuffix("c") == filename

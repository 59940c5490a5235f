"""Wire the plugin into pytest: `session.entry` has the hooks. Short, since pytest rewrites and reads it slowly."""

import sys

from _pytest.assertion.rewrite import AssertionRewritingHook

# `no_rewriting` of `session.entry`, in short: a module for both would itself be rewritten, 1.4 million instructions.
_FINDERS = sys.meta_path[:]
sys.meta_path[:] = [finder for finder in _FINDERS if not isinstance(finder, AssertionRewritingHook)]
try:
    from pytest_gpuleak.session.entry import (
        pytest_addoption,
        pytest_collection_modifyitems,
        pytest_configure,
        pytest_load_initial_conftests,
    )
finally:
    sys.meta_path[:] = _FINDERS
del _FINDERS, AssertionRewritingHook, sys  # pytest and its fixtures look at each name of a plugin

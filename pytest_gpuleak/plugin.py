"""Wire the plugin into pytest: `session.entry` has the hooks. Short, since pytest rewrites and reads it slowly."""

import sys

from _pytest.assertion.rewrite import AssertionRewritingHook

# Our modules but this one and the package are loaded as Python would: no test shows an assert of theirs, and to rewrite the
# 170 that a first leak loads takes as long as the rest of a short run, again in each where bytecode may not be written.
for _hook in [finder for finder in sys.meta_path if isinstance(finder, AssertionRewritingHook)]:
    getattr(_hook, "_must_rewrite", set()).discard("pytest_gpuleak")
    del _hook

from pytest_gpuleak.session.entry import (  # noqa: E402 -- else the hook loads it
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_load_initial_conftests,
)

del AssertionRewritingHook, sys  # pytest and its fixtures look at each name of a plugin

"""Locate fixtures as their author wrote them."""

from __future__ import annotations

import inspect
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from _pytest.scope import Scope

from pytest_gpuleak.model.outcomes import FixturePlace

if TYPE_CHECKING:
    from collections.abc import Callable


def place_of(fixture: Any, request: Any, shorten: Callable[[str], str]) -> FixturePlace:
    """Return the place of pytest's FixtureDef `fixture` as a user knows it."""
    name, function = _as_written(str(fixture.argname), fixture.func, request)
    file = line = None
    try:
        code = inspect.unwrap(function).__code__
        file, line = shorten(code.co_filename), code.co_firstlineno
    except (AttributeError, ValueError):
        pass  # a callable object, or a ring of wrappers: the name suffices
    return FixturePlace(name, str(fixture.scope), str(fixture.baseid or ""), file, line)


UNITTEST_PREFIX = "_unittest_setUpClass_fixture_"

XUNIT_PREFIXES = {
    "_xunit_setup_class_fixture_": ("cls", ("setup_class", "teardown_class")),
    UNITTEST_PREFIX: ("cls", ("setUpClass", "tearDownClass")),
    "_xunit_setup_module_fixture_": ("module", ("setUpModule", "setup_module", "tearDownModule", "teardown_module")),
}
"""Names of the fixtures that pytest makes of xunit-style setup (_pytest/python.py, _pytest/unittest.py), and of what they run."""


def _as_written(name: str, function: Any, request: Any) -> tuple[str, Any]:
    for prefix, (owner_name, methods) in XUNIT_PREFIXES.items():
        if name.startswith(prefix):
            owner = getattr(request, owner_name, None)
            found = [(method, getattr(owner, method)) for method in methods if hasattr(owner, method)]
            written = [one for one in found if getattr(one[1], "__module__", None) != "unittest.case"]
            method, function = next(iter(written or found), (methods[0], function))
            owner_text = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", "?")
            return f"{owner_text}.{method}", function
    return name, function


def may_free(fixture: Any, node: Any) -> bool:
    """Tell, as the teardown of a wider fixture begins, whether it may free memory: it runs code, or drops an object.

    Of each `unittest.TestCase` pytest makes a fixture for `setUpClass`; few have a `tearDownClass`.
    """
    finalizers, result = getattr(fixture, "_finalizers", None), getattr(fixture, "cached_result", None)
    if type(finalizers) is not list or type(result) is not tuple or result[0] is not None or result[-1] is not None:
        return True
    if str(fixture.argname).startswith(UNITTEST_PREFIX) and not _tears_down(getattr(node, "obj", None)):
        finalizers = [finalizer for finalizer in finalizers if _name_of(finalizer) != _GENERATOR_END]
    return any(_name_of(finalizer) not in _HARMLESS for finalizer in finalizers)


def nodes_set_up(session: Any) -> list[tuple[Any, list[Any], Any]]:
    """Return the nodes that are set up, each with its finalizers and its setup's error (`SetupState` in _pytest/runner.py)."""
    stack = getattr(getattr(session, "_setupstate", None), "stack", None)
    return [(node, *entry) for node, entry in stack.items()] if type(stack) is dict else []


def finalizers_of_nodes(item: Any, nextitem: Any) -> list[Any]:
    """Return the finalizers that a test's teardown is to call and that user code gave to a wider node, as to the session."""
    if nextitem is not None and nextitem.parent is item.parent:
        return []
    stay = {item, *(() if nextitem is None else nextitem.listchain())}
    finalizers = [one for node, ours, _ in nodes_set_up(item.session) if node not in stay for one in ours]
    return [one for one in finalizers if not str((_name_of(one) or ("",))[0]).startswith("_pytest.")]


_GENERATOR_END = ("_pytest.fixtures", "_teardown_yield_fixture")
_HARMLESS = {
    ("_pytest.fixtures", "FixtureDef.finish"),  # of a fixture that uses this one, which is asked about for itself
    ("_pytest.fixtures", "FixtureDef.execute.<locals>.<lambda>"),  # calls the hook `pytest_fixture_post_finalizer`
    ("pytest_gpuleak.session.fixture_hooks", "FixtureHooks._end_teardown"),
}


def _name_of(finalizer: Any) -> tuple[str, str] | None:
    function = finalizer.func if type(finalizer) is partial else finalizer
    if type(function) is MethodType:
        function = function.__func__
    return (function.__module__, function.__qualname__) if type(function) is FunctionType else None


def _tears_down(test_case: Any) -> bool:
    from unittest import TestCase

    teardown = getattr(getattr(test_case, "tearDownClass", None), "__func__", None)
    return teardown is not vars(TestCase)["tearDownClass"].__func__ or bool(getattr(test_case, "_class_cleanups", True))


def is_wider(fixture: Any) -> bool:
    """Tell whether a fixture outlives the test that sets it up."""
    # `scope` passes through two properties of pytest, for each fixture of each test.
    scope = getattr(fixture, "_scope", None)
    return scope is not Scope.Function if type(scope) is Scope else bool(fixture.scope != "function")

"""Locate fixtures as their author wrote them."""

from __future__ import annotations

import inspect
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


XUNIT_PREFIXES = {
    "_xunit_setup_class_fixture_": ("cls", ("setup_class",)),
    "_unittest_setUpClass_fixture_": ("cls", ("setUpClass",)),
    "_xunit_setup_module_fixture_": ("module", ("setUpModule", "setup_module")),
}
"""Names of the fixtures that pytest makes of xunit-style setup (_pytest/python.py, _pytest/unittest.py)."""


def _as_written(name: str, function: Any, request: Any) -> tuple[str, Any]:
    for prefix, (owner_name, setups) in XUNIT_PREFIXES.items():
        if name.startswith(prefix):
            owner = getattr(request, owner_name, None)
            setup = next((setup for setup in setups if hasattr(owner, setup)), setups[-1])
            owner_text = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", "?")
            return f"{owner_text}.{setup}", getattr(owner, setup, function)
    return name, function


def is_wider(fixture: Any) -> bool:
    """Tell whether a fixture outlives the test that sets it up."""
    # `scope` passes through two properties of pytest, for each fixture of each test.
    scope = getattr(fixture, "_scope", None)
    return scope is not Scope.Function if type(scope) is Scope else bool(fixture.scope != "function")

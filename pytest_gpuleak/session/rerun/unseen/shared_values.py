"""Put back the content of what several tests share: values of wider fixtures, of the test's class and its module."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.heap.classes import class_lines
from pytest_gpuleak.heap.safe_access import module_dict
from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.pytest_internals import fixtures_of
from pytest_gpuleak.session.rerun.unseen.restoring import Restore, all_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

MOST_GLOBALS: Final = 200
"""Values of a namespace beyond which it is passed over: a module to which each test adds takes longer with each."""


def keep_shared_values(item: pytest.Item) -> Restore:
    """Note the content of models that the test shares with others, before it is run again."""
    return all_of(shared_frameworks(item.config).keep_values(lambda: shared_values(item)))


def shared_values(item: pytest.Item) -> dict[str, object]:
    """Return what the test shares with others, by a name for each that stays the same."""
    found: dict[str, object] = {}
    for fixture in fixtures_of(item):
        result = getattr(fixture, "cached_result", None)
        # The fixture `request` has no scope before pytest 8.1, and is the test's own.
        if result is not None and result[-1] is None and getattr(fixture, "scope", "function") != "function":
            found[f"fixture {fixture.argname} {id(fixture)}"] = result[0]
    test_class = getattr(item, "cls", None)
    namespaces: list[Mapping[str, object]] = []
    if test_class is not None:
        namespaces += map(vars, class_lines(test_class))
    namespaces.append(module_dict(getattr(item, "module", None)) or {})
    for index, namespace in enumerate(namespaces):
        # Most entries are functions and classes.
        values = {f"{index} {name}": value for name, value in list(namespace.items()) if type(value) not in _CODE}
        if len(values) <= MOST_GLOBALS:
            found |= values
    return found


_CODE = frozenset((types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, property, str, int))

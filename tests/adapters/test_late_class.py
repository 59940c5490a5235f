"""The class of a framework's arrays, whatever tests do to `sys.modules`."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING
from unittest import mock

from pytest_gpuleak.adapters.late import LateClass

if TYPE_CHECKING:
    import pytest

NAME = "a_library.core"


def a_module(**names: object) -> types.ModuleType:
    module = types.ModuleType(NAME)
    vars(module).update(names)
    return module


def test_the_first_name_that_is_a_class_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateClass(NAME, "Base", "Array")
    assert late.get() is None
    monkeypatch.setitem(sys.modules, NAME, a_module(Base=5, Array=int))
    assert late.get() is int
    monkeypatch.setitem(sys.modules, NAME, a_module(Base=str, Array=int))
    assert late.get() is str, "the module was imported again"


def test_a_class_stays_known_whatever_takes_its_modules_place(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateClass(NAME, "Array")
    monkeypatch.setitem(sys.modules, NAME, a_module(Array=int))
    assert late.get() is int
    stand_in = mock.MagicMock()
    for other in (None, stand_in, a_module(), object()):
        monkeypatch.setitem(sys.modules, NAME, other)
        assert late.get() is int
    monkeypatch.delitem(sys.modules, NAME)
    assert late.get() is int
    assert stand_in.mock_calls == []


def test_a_module_half_imported_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateClass(NAME, "Array")
    module = a_module()
    monkeypatch.setitem(sys.modules, NAME, module)
    assert late.get() is None
    vars(module)["Array"] = int
    assert late.get() is int

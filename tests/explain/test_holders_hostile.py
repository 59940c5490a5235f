"""Strangers on the way: no code of theirs runs, whatever they override."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from typing import Any

import pytest

from pytest_gpuleak.explain.explain import explain

pytestmark = pytest.mark.interpreter

CALLS: list[str] = []


class Thing:
    """Stands for a tensor."""


def _refuse(name: str) -> Any:
    def method(*_: object, **__: object) -> Any:
        CALLS.append(name)
        raise AssertionError(f"{name} was called")

    return method


OVERRIDES = (
    "__eq__",
    "__ne__",
    "__repr__",
    "__str__",
    "__bool__",
    "__len__",
    "__getattr__",
    "__getattribute__",
    "__iter__",
    "__contains__",
    "__getitem__",
    "__dir__",
    "__format__",
    "__lt__",
    "__del__",
    "__instancecheck__",
    "__subclasscheck__",
    "items",
    "keys",
    "values",
    "get",
)


def hostile_namespace() -> dict[str, Any]:
    namespace = {name: _refuse(name) for name in OVERRIDES if name != "__del__"}
    namespace["__hash__"] = object.__hash__
    namespace["__class__"] = property(_refuse("__class__"))
    return namespace


class HostileMeta(type):
    """A metaclass whose instances refuse everything."""


def hostile_class(*bases: type) -> Any:
    cls: Any = HostileMeta("Hostile", bases, hostile_namespace())
    return cls


@pytest.fixture(autouse=True)
def no_calls() -> Any:
    CALLS.clear()
    yield
    for name in ("__getattribute__", "__eq__", "__hash__", "__instancecheck__", "__subclasscheck__", "__call__"):
        if name in HostileMeta.__dict__:
            delattr(HostileMeta, name)
    assert CALLS == []


def arm() -> None:
    """From now on the hostile classes refuse, too."""
    for name in ("__getattribute__", "__eq__", "__hash__", "__instancecheck__", "__subclasscheck__"):
        setattr(HostileMeta, name, _refuse(f"meta {name}"))
    HostileMeta.mro = _refuse("mro")  # type: ignore[method-assign]
    del HostileMeta.mro


def explained(target: object) -> Any:
    holders = [target]
    return explain(holders)[0].holder


@pytest.mark.parametrize("base", [object, list, dict, tuple, set])
def test_hostile_containers(app: Any, base: type) -> None:
    target = Thing()
    cls = hostile_class(base) if base is not object else hostile_class()
    if base is tuple:
        held = tuple.__new__(cls, [target])
    elif base is dict:
        held = dict.__new__(cls)
        dict.__setitem__(held, "a", target)
    else:
        held = base.__new__(cls)  # type: ignore[call-overload]
    if base is list:
        list.append(held, target)
    if base is set:
        set.add(held, target)
    if base is object:
        object.__setattr__(held, "content", target)
    app.HELD = held
    arm()
    holder = explained(target)
    app.HELD = None
    assert holder.root == "leaky_app.HELD"


def test_hostile_target_and_key(app: Any) -> None:
    target = object.__new__(hostile_class())
    key = object.__new__(hostile_class())
    app.CACHE[key] = target
    arm()
    texts = [explained(target).text, explained(key).text]
    dict.clear(app.CACHE)
    assert texts == ["leaky_app.CACHE[<Hostile>]", "leaky_app.CACHE (a key)"]


def test_instance_dict_behind_a_property(app: Any) -> None:
    class Hidden:
        def __init__(self, content: object) -> None:
            self.content = content

    class Liar(Hidden):
        __dict__ = property(_refuse("__dict__"))

    target = Thing()
    app.HELD = Liar(target)
    assert explained(target).root == "leaky_app.HELD"


def test_dead_weak_proxies(app: Any) -> None:
    class Stranger:
        pass

    target, gone = Thing(), Stranger()
    app.HELD = {"proxy": weakref.proxy(gone), "list": [weakref.proxy(gone), target]}
    del gone
    assert explained(target).text == "leaky_app.HELD['list'][1]"


def test_lazy_modules_import_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(types.ModuleType):
        __getattr__ = _refuse("lazy __getattr__")

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            return _refuse("lazy __dict__")()

    lazy = Lazy("lazy_app")
    target = Thing()
    types.ModuleType.__dict__["__dict__"].__get__(lazy)["HISTORY"] = [target]  # type: ignore[index]
    monkeypatch.setitem(sys.modules, "lazy_app", lazy)
    assert explained(target).text == "lazy_app.HISTORY[0]"


def test_odd_things_in_sys_modules(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "odd_app", object.__new__(hostile_class()))
    monkeypatch.setitem(sys.modules, "no_app", None)
    target = Thing()
    app.HISTORY.append(target)
    arm()
    assert explained(target).text == "leaky_app.HISTORY[0]"


def test_class_with_an_odd_module_and_name(app: Any) -> None:
    class Odd:
        pass

    class Text(str):
        __format__ = __str__ = __repr__ = _refuse("str")
        __slots__ = ()

    Odd.__module__ = Text("odd")
    Odd.__name__ = Text("Odd")
    Odd.__qualname__ = Text("Odd")
    target = Thing()
    odd = Odd()
    odd.content = target  # type: ignore[attr-defined]
    app.HELD = odd
    assert explained(target).text == "leaky_app.HELD.content"


def test_collector_is_left_as_it_was(app: Any) -> None:
    app.HISTORY.append(Thing())
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            explain(app.HISTORY)
            assert gc.isenabled() is enabled
        finally:
            gc.enable()

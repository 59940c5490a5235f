"""Edges of the standard library's types: as their users write them, alike in all Python versions."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import itertools
import queue
import sys
import time
import types
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gpuleak.explain.explain import explain

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interpreter


class Thing:
    """Stands for a tensor."""


class Metrics(NamedTuple):
    step: int
    loss: object


@dataclass
class Slotted:
    __slots__ = ("batch", "step")
    step: int
    batch: object


@dataclass
class Defaulted:
    kept: object = field(default_factory=list)


class Lazy:
    @functools.cached_property
    def table(self) -> list[object]:
        return []


class Meta(type):
    registry: dict[str, object] = {}  # noqa: RUF012  # a class attribute that leaks is the subject


class WithMeta(metaclass=Meta):
    pass


class Overridden(Metrics):
    @property
    def loss(self) -> object:
        raise AssertionError("a stranger's code ran")


@functools.singledispatch
def show(value: object) -> None:
    pass


def text_of(target: object) -> str:
    holders = [target]
    return explain(holders)[0].holder.text


def lazy(target: object) -> Lazy:
    found = Lazy()
    found.table.append(target)
    return found


def weak_keys(target: object) -> object:
    found: weakref.WeakKeyDictionary[type, object] = weakref.WeakKeyDictionary()
    found[Slotted] = target
    return found


def token(target: object) -> object:
    variable: contextvars.ContextVar[object] = contextvars.ContextVar("current")
    variable.set(target)
    return variable.set(None)


def simple_queue(target: object) -> object:
    found: queue.SimpleQueue[object] = queue.SimpleQueue()
    found.put([target])
    return found


def filled_queue(target: object) -> object:
    found: queue.Queue[object] = queue.Queue()
    found.put((1, target))
    return found


def callback(target: object) -> object:
    def notify(_: object) -> object:
        return target

    return weakref.ref(Slotted, notify)


async def coroutine(batch: object) -> None:
    pass


async def asynchronous(batch: object) -> Any:
    yield 1


def advanced(iterator: Any) -> Any:
    next(iterator)
    return iterator


EVALUATE: dict[str, tuple[Any, str]] = {
    "named tuple": (lambda target: [Metrics(1, target)], "[0].loss"),
    "named tuple with a property in the way": (lambda target: Overridden(1, target), "[1]"),
    "struct sequence": (lambda target: time.struct_time((target, *range(8))), ".tm_year"),
    "dataclass with slots": (lambda target: Slotted(1, {"a": target}), ".batch['a']"),
    "dataclass": (lambda target: Defaulted([target]), ".kept[0]"),
    "cached property": (lazy, ".table[0]"),
    "user dict": (lambda target: collections.UserDict(a=target), ".data['a']"),
    "user list": (lambda target: collections.UserList([target]), ".data[0]"),
    "key that is a class": (lambda target: {int: target}, "[int]"),
    "key that is a class of a module": (lambda target: {Slotted: target}, f"[{__name__}.Slotted]"),
    "key that is a function": (lambda target: {text_of: target}, f"[{__name__}.text_of]"),
    "view of a dict": (lambda target: {"a": target}.values(), ".mapping['a']"),
    "view of a dict's keys": (lambda target: {"a": target}.keys(), ".mapping['a']"),
    "token": (token, ".old_value"),
    "queue": (filled_queue, ".queue[0][1]"),
    "weak reference's callback": (callback, ".__callback__.__closure__[0].cell_contents"),
    "coroutine": (coroutine, ".cr_frame.f_locals['batch']"),
    "asynchronous generator": (asynchronous, ".ag_frame.f_locals['batch']"),
    "nested namespaces": (lambda target: types.SimpleNamespace(a=types.SimpleNamespace(x=target)), ".a.x"),
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("name", EVALUATE)
def test_text_evaluates_to_the_target(app: Any, name: str) -> None:
    make, expected = EVALUATE[name]
    target = Thing()
    app.HELD = make(target)
    text = text_of(target)
    assert text == "leaky_app.HELD" + expected
    package = __name__.partition(".")[0]
    assert eval(text, {"leaky_app": app, package: sys.modules[package]}) is target


WORDS: dict[str, tuple[Any, str]] = {
    "simple queue": (simple_queue, " (item of queue)[0]"),
    "default of a context variable": (
        lambda target: contextvars.ContextVar("current", default=(target,)),
        " (default)[0]",
    ),
    "weak keys": (weak_keys, f"[<{__name__}.Slotted>]"),
    "key that is a local class": (lambda target: {type("Local", (), {}): target}, "[<class Local>]"),
    "cycle": (lambda target: advanced(itertools.cycle([target])), " (inside itertools.cycle)[0]"),
    "map": (lambda target: map(show, [target]), " (inside map)[0] (inside list_iterator)[0]"),
    "enumerate": (lambda target: enumerate([target]), " (inside enumerate) (inside list_iterator)[0]"),
    "generator expression": (
        lambda target: (item for item in (1, target)),
        # From 3.15 on the generator is given what it iterates over, and makes the iterator itself.
        f".gi_frame.f_locals['.0']{' (inside tuple_iterator)' if sys.version_info < (3, 15) else ''}[1]",
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_what_python_has_no_words_for(app: Any, name: str) -> None:
    make, expected = WORDS[name]
    target = Thing()
    app.HELD = make(target)
    assert text_of(target) == "leaky_app.HELD" + expected


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def test_result_and_callbacks_of_a_future(app: Any, loop: asyncio.AbstractEventLoop) -> None:
    done, waiting, result, first, second = loop.create_future(), loop.create_future(), Thing(), Thing(), Thing()
    app.DONE, app.WAITING = done, waiting
    done.set_result(result)
    waiting.add_done_callback(functools.partial(print, first))
    waiting.add_done_callback(functools.partial(print, second))
    for target in (result, first, second):
        assert eval(text_of(target), {"leaky_app": app}) is target
    assert text_of(result) == "leaky_app.DONE.result()"
    assert text_of(second) == "leaky_app.WAITING._callbacks[1][0].args[0]"


def test_error_of_a_future(app: Any, loop: asyncio.AbstractEventLoop) -> None:
    target = Thing()
    app.FAILED = loop.create_future()
    app.FAILED.set_exception(ValueError(target))
    assert text_of(target) == "leaky_app.FAILED.exception().args[0]"
    assert app.FAILED.exception() is not None


def test_registry_of_a_single_dispatch(app: Any) -> None:
    target = Thing()
    app.SHOW = functools.singledispatch(show)
    app.SHOW.register(int, functools.partial(show, target))
    text = text_of(target)
    assert text == "leaky_app.SHOW.registry[int].args[0]"
    assert eval(text, {"leaky_app": app}) is target


def refuse(*_: object) -> Any:
    raise AssertionError("a stranger's code ran")


class Refusing(type):
    __getattribute__ = refuse
    __eq__ = refuse
    __hash__ = type.__hash__


class RefusingReference(weakref.ReferenceType):  # type: ignore[type-arg]
    __call__ = refuse
    __eq__ = refuse

    def __hash__(self) -> int:
        return 1


class RefusingTuple(tuple):  # type: ignore[type-arg]
    _fields = property(refuse)
    __getitem__ = refuse


def test_strangers_among_keys_and_tuples_are_not_asked(app: Any) -> None:
    targets = [Thing(), Thing(), Thing()]
    app.CLASSES = {Refusing("Stranger", (), {}): targets[0]}
    app.REFERENCES = {RefusingReference(Slotted): targets[1]}
    app.TUPLE = RefusingTuple([targets[2]])
    texts = [found.holder.text for found in explain(targets)]
    assert texts == [
        "leaky_app.CLASSES[<class Stranger>]",
        f"leaky_app.REFERENCES[<weakref to {__name__}.Slotted>]",
        "leaky_app.TUPLE[0]",
    ]


def test_dict_of_a_metaclass() -> None:
    target = Thing()
    Meta.registry["a"] = target
    holder = explain([target])[0].holder
    Meta.registry.clear()
    assert (holder.kind, holder.text) == ("class", f"{__name__}.Meta.registry['a']")


def test_attribute_of_a_class_with_a_metaclass() -> None:
    target = Thing()
    WithMeta.extra = target  # type: ignore[attr-defined]
    holder = explain([target])[0].holder
    del WithMeta.extra  # type: ignore[attr-defined]
    assert holder.text == f"{__name__}.WithMeta.extra"


def test_a_local_of_a_comprehension_is_its_functions(app: Any) -> None:
    target = Thing()
    app.HOOKS = [lambda: target for _ in range(1)]
    label = explain([target])[0].holder.path[1].type
    assert label.endswith("test_a_local_of_a_comprehension_is_its_functions.<locals>.<lambda>")

"""The text of a path: what Python can express evaluates to the target."""

from __future__ import annotations

import collections
import enum
import functools
import sys
import threading
import types
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from pytest_gpuleak.explain.explain import explain

if TYPE_CHECKING:
    from pytest_gpuleak.explain.search import Explanation

pytestmark = pytest.mark.interpreter


class Thing:
    """Stands for a tensor."""


class Slotted:
    __slots__ = ("content",)


class Colour(enum.Enum):
    RED = 1


class WithProperty:
    @property
    def content(self) -> object:
        raise AssertionError("a stranger's code ran")


class Deep(dict):  # type: ignore[type-arg]
    pass


def explained(target: object) -> Explanation:
    holders = [target]
    return explain(holders)[0]


def with_slot(target: object) -> Slotted:
    slotted = Slotted()
    slotted.content = target  # type: ignore[attr-defined]
    return slotted


def with_attribute(owner: Any, name: str, target: object) -> Any:
    owner.__dict__[name] = target
    return owner


def closure(batch: object) -> object:
    return lambda: batch


def generator(batch: object) -> object:
    def steps() -> Any:
        local = batch
        yield
        del local

    running = steps()
    next(running)
    return running


def default(target: object) -> object:
    def step(batch: object = target, *, other: object = None) -> None:
        pass

    return step


def keyword_default(target: object) -> object:
    def step(*, batch: object = target) -> None:
        pass

    return step


def bound(target: object) -> object:
    return types.MethodType(lambda self: None, target)


def raised(target: object) -> BaseException:
    try:
        _fail(target)
    except ValueError as error:
        return error.with_traceback(error.__traceback__.tb_next)  # type: ignore[union-attr]
    raise AssertionError


def _fail(batch: object) -> None:
    raise ValueError


MAKERS: dict[str, tuple[Any, str]] = {
    "list": (lambda target: [0, target], "[1]"),
    "tuple": (lambda target: (target,), "[0]"),
    "dict": (lambda target: {"key": target}, "['key']"),
    "dict with a tuple": (lambda target: {("a", 1): target}, "[('a', 1)]"),
    "deque": (lambda target: collections.deque([0, target]), "[1]"),
    "ordered dict": (lambda target: collections.OrderedDict(last=target), "['last']"),
    "default dict": (lambda target: collections.defaultdict(list, {3: [target]}), "[3][0]"),
    "chain map": (lambda target: collections.ChainMap({}, {"a": target}), ".maps[1]['a']"),
    "subclass of dict": (lambda target: Deep(a=target), "['a']"),
    "attribute of a dict": (lambda target: with_attribute(Deep(), "extra", target), ".extra"),
    "attribute": (lambda target: types.SimpleNamespace(loss=target), ".loss"),
    "odd attribute": (lambda target: with_attribute(Thing(), "a b", target), ".__dict__['a b']"),
    "behind a property": (lambda target: with_attribute(WithProperty(), "content", target), ".__dict__['content']"),
    "slot": (with_slot, ".content"),
    "nested": (lambda target: {"a": [{3: types.SimpleNamespace(x=target)}]}, "['a'][0][3].x"),
    "closure": (closure, ".__closure__[0].cell_contents"),
    "default": (default, ".__defaults__[0]"),
    "keyword default": (keyword_default, ".__kwdefaults__['batch']"),
    "method": (bound, ".__self__"),
    "built-in method": (lambda target: [target].append, ".__self__[0]"),
    "partial": (lambda target: functools.partial(print, target), ".args[0]"),
    "partial keyword": (lambda target: functools.partial(print, end=target), ".keywords['end']"),
    "property": (lambda target: property(functools.partial(print, target)), ".fget.args[0]"),
    "mapping proxy": (lambda target: types.MappingProxyType({"a": target}), "['a']"),
    "generator": (generator, ".gi_frame.f_locals['local']"),
    "exception's argument": (lambda target: ValueError(0, target), ".args[1]"),
    "traceback": (raised, ".__traceback__.tb_frame.f_locals['batch']"),
    "threading.local": (lambda target: with_attribute(threading.local(), "x", target), ".x"),
    "slice": (slice, ".stop"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_text_evaluates_to_the_target(app: Any, name: str) -> None:
    make, expected = MAKERS[name]
    target = Thing()
    app.HELD = make(target)
    found = explained(target).holder
    assert found.text == "leaky_app.HELD" + expected
    assert (found.kind, found.root) == ("module", "leaky_app.HELD")
    assert "".join(step.edge for step in found.path) == expected
    assert eval(found.text, {"leaky_app": app}) is target


def test_a_bound_method_is_told_by_its_name(app: Any) -> None:
    target = Thing()
    app.HELD = [types.MethodType(with_slot, target)]
    path = explained(target).holder.path
    assert [(step.edge, step.type) for step in path] == [("[0]", "list"), (".__self__", f"method {__name__}.with_slot")]


def test_enum_keys_are_written_by_name(app: Any) -> None:
    target = Thing()
    app.CACHE[Colour.RED] = target
    text = explained(target).holder.text
    assert text == f"leaky_app.CACHE[{__name__}.Colour.RED]"
    assert eval(text, {"leaky_app": app, __name__.partition(".")[0]: sys.modules[__name__.partition(".")[0]]}) is target


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda target: {target}, " (item of set)"),
        (lambda target: frozenset([target]), " (item of set)"),
        (lambda target: {target: 1}, " (a key)"),
        (lambda target: {Thing(): target}, "[<Thing>]"),
        (lambda target: iter([target]), " (inside list_iterator)[0]"),
    ],
)
def test_what_python_has_no_words_for(app: Any, make: Any, expected: str) -> None:
    target = Thing()
    app.HELD = make(target)
    assert explained(target).holder.text == "leaky_app.HELD" + expected


def test_keys_are_cut_and_free_of_control_characters(app: Any) -> None:
    target, other = Thing(), Thing()
    app.CACHE["\x1b[31m\n" + "a" * 500] = target
    app.CACHE[10**5000] = other
    text = explained(target).holder.text
    assert text.isprintable()
    assert len(text) < 80
    assert explained(other).holder.text == "leaky_app.CACHE[<int>]"


def test_a_closure_is_named_for_people(app: Any) -> None:
    target = Thing()
    app.HELD = closure(target)
    step = explained(target).holder.path[0]
    assert step.type == "closure variable 'batch' of closure.<locals>.<lambda>"


def test_mocks_are_named_as_tests_read_them(app: Any) -> None:
    called, later, child = Thing(), Thing(), Thing()
    app.HELD = mock.Mock()
    app.HELD(called)
    assert eval(explained(called).holder.text, {"leaky_app": app}) is called
    app.HELD.step(later, loss=child)
    assert eval(explained(later).holder.text, {"leaky_app": app}) is later
    assert eval(explained(child).holder.text, {"leaky_app": app}) is child
    assert "_mock" not in explained(child).holder.text


def test_an_exception_held_by_a_global_stays_that_global(app: Any) -> None:
    target = Thing()
    app.LAST_ERROR = raised(target)
    holder = explained(target).holder
    assert (holder.kind, holder.root) == ("module", "leaky_app.LAST_ERROR")


def test_pattern_has_no_indices(app: Any) -> None:
    targets = [Thing(), Thing()]
    app.HELD = {"a": [*targets]}
    patterns = {found.pattern for found in explain(targets)}
    assert patterns == {"leaky_app.HELD['a'][*]"}


class LocalWithInit(threading.local):
    asked = 0

    def __init__(self) -> None:
        type(self).asked += 1


@pytest.mark.parametrize(
    ("kind", "label"), [(threading.local, "another thread"), (LocalWithInit, "the thread that set it")]
)
def test_whose_value_of_a_threading_local_it_is(app: Any, kind: type[threading.local], label: str) -> None:
    """A class with an `__init__` is not asked: the first look of a thread calls it."""
    app.LOCAL, box, ended = kind(), [Thing()], threading.Event()
    begun = threading.Event()

    def work(local: Any, thing: Thing) -> None:
        local.batch = thing
        del thing
        begun.set()
        ended.wait()

    thread = threading.Thread(target=work, args=(app.LOCAL, box[0]))
    thread.start()
    begun.wait()
    asked = LocalWithInit.asked
    try:
        holder = explain(box, ignore={id(sys._getframe())})[0].holder
    finally:
        ended.set()
        thread.join()
    assert (holder.text, holder.path[0].type) == ("leaky_app.LOCAL.batch", f"threading.local, in {label}")
    assert LocalWithInit.asked == asked
    app.LOCAL.batch = box[0]
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    assert holder.path[0].type == "threading.local, in the thread that set it"

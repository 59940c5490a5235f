"""Containers that free-threaded CPython 3.13 hides from the collector, simulated where it does not."""

from __future__ import annotations

import ctypes
import gc
import types
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.heap import immortal_containers, referrers
from pytest_gpuleak.heap.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.interpreter


class Thing:
    """Stands for a tensor."""


@pytest.fixture
def hide() -> Iterator[Callable[..., None]]:
    """Untracks objects, as the interpreter does with what it has made immortal."""
    untrack, track = ctypes.pythonapi.PyObject_GC_UnTrack, ctypes.pythonapi.PyObject_GC_Track
    hidden: list[object] = []

    def hide_all(*objects: object) -> None:
        for value in (*objects, vars(immortal_containers)):
            untrack(ctypes.py_object(value))
            hidden.append(value)

    yield hide_all
    while hidden:
        value = hidden.pop()
        if not gc.is_tracked(value):
            track(ctypes.py_object(value))


def text(target: object) -> str:
    return explain([target])[0].holder.text


def test_an_interpreter_that_hides_none_is_not_searched() -> None:
    if immortal_containers.are_untracked():
        pytest.skip("this one hides them")
    assert immortal_containers.immortal_referrers([gc], (), lambda steps: False) == []


def test_a_global_is_found_in_a_hidden_namespace(app: Any, hide: Callable[..., None]) -> None:
    target = Thing()
    app.HISTORY.append(target)
    hide(vars(app), app)
    assert not any(found is vars(app) for found in gc.get_referrers(app.HISTORY))
    assert text(target) == "leaky_app.HISTORY[0]"


@pytest.mark.parametrize("width", [1, referrers.SCAN_FROM])
def test_many_are_found_at_a_time(app: Any, hide: Callable[..., None], width: int) -> None:
    kept = [Thing() for _ in range(width)]
    for number, target in enumerate(kept):
        vars(app)[f"kept_{number}"] = target
    hide(vars(app), app)
    found = referrers.referrers(kept, Budget(10**9))
    assert any(container is vars(app) for container in found)
    found.clear()


def test_a_class_is_found_by_what_its_hidden_class_keeps(app: Any, hide: Callable[..., None]) -> None:
    target = Thing()
    app.Attention.masks["a"] = target
    hide(vars(app), app, app.Attention)
    assert text(target) == "leaky_app.Attention.masks['a']"


def test_defaults_of_a_hidden_function_and_method(app: Any, hide: Callable[..., None]) -> None:
    target, other = Thing(), Thing()
    app.function = types.FunctionType((lambda value: value).__code__, vars(app), "function", (target,))
    app.Attention.method = types.FunctionType((lambda self, value: value).__code__, vars(app), "method", (other,))
    hide(vars(app), app, app.Attention, app.function, app.Attention.method)
    for value in (target, other):
        assert eval(text(value), {"leaky_app": app}) is value


def test_the_time_limit_ends_the_walk(app: Any, hide: Callable[..., None]) -> None:
    hide(vars(app), app)
    steps: list[int] = []

    def worked(count: int) -> bool:
        steps.append(count)
        return True

    immortal_containers.immortal_referrers([app], (), worked)
    assert len(steps) == 1

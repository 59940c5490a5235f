"""The search keeps nothing alive: no target, no type, no frame, no snapshot of locals."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from typing import Any

import pytest

from pytest_gpuleak.explain import search
from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.heap.immortal_containers import are_untracked

pytestmark = pytest.mark.interpreter


class Thing:
    """Stands for a tensor."""


def local_class() -> Any:
    class Local:
        pass

    return Local


@pytest.fixture
def collector_off() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector_off")
def test_targets_die_by_reference_count(app: Any) -> None:
    dead: list[weakref.ref[Any]] = []
    for number in range(3):
        target = Thing()
        app.HELD = [{"number": number, "thing": target}]
        dead.append(weakref.ref(target))
        assert explain([target])[0].holder.kind == "module"
        del target
    app.HELD = None
    assert [reference() for reference in dead] == [None, None, None]


@pytest.mark.usefixtures("collector_off")
def test_holders_of_all_kinds_die_by_reference_count(app: Any) -> None:
    import functools

    def generator(content: object) -> Any:
        yield content

    def makers(target: object) -> list[Any]:
        running = generator(target)
        next(running)
        return [[target], {"a": target}, lambda: target, functools.partial(print, target), running, {target}]

    target = Thing()
    gone = weakref.ref(target)
    for held in makers(target):
        app.HELD = held
        explain([target])
    app.HELD = held = None
    del target
    assert gone() is None


def test_types_die() -> None:
    if are_untracked():
        pytest.skip("free-threaded CPython 3.13 makes each class immortal once a thread has run")
    cls = local_class()
    target = cls()
    gone = weakref.ref(cls)
    explain([target])
    del cls, target
    gc.collect()
    assert gone() is None


@pytest.mark.usefixtures("collector_off")
def test_locals_of_running_functions_die() -> None:
    def step() -> weakref.ref[Thing]:
        target = Thing()
        gone = weakref.ref(target)
        explain([target])
        del target
        assert gone() is None
        return gone

    assert step()() is None


@pytest.mark.usefixtures("collector_off")
def test_locals_of_other_threads_die() -> None:
    started, look, looked = threading.Event(), threading.Event(), threading.Event()
    outcome: list[bool] = []

    def work() -> None:
        target = Thing()
        gone = weakref.ref(target)
        started.set()
        look.wait()
        del target
        outcome.append(gone() is None)
        looked.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    explain([Thing()])
    look.set()
    looked.wait()
    thread.join()
    assert outcome == [True]


def test_a_dict_of_locals_that_the_user_holds_stays_filled() -> None:
    target = Thing()
    namespace = locals()
    explain([target])
    assert namespace["target"] is target


@pytest.mark.parametrize("framework", ["heapq", pytest.param("torch", marks=pytest.mark.torch)])
@pytest.mark.usefixtures("collector_off")
def test_nothing_is_left_on_the_heap(app: Any, framework: str) -> None:
    pytest.importorskip(framework)
    app.HELD = [Thing()]
    explain(app.HELD)  # leaves an empty dict in each running frame, before Python 3.13: one that is used again
    before = len(gc.get_objects())
    for _ in range(5):
        explain(app.HELD)
    grown = len(gc.get_objects()) - before
    assert grown < 5


@pytest.mark.usefixtures("collector_off")
def test_nothing_is_kept_when_the_search_fails(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(search, "Writer", fail)
    target = Thing()
    app.HELD = [target]
    gone = weakref.ref(target)
    with contextlib.suppress(MemoryError):
        explain([target])
    assert not gc.isenabled()
    app.HELD = None
    del target
    assert gone() is None
    assert sys.exc_info() == (None, None, None)

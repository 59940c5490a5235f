"""What settling knows of the suspects while it holds none of them."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuleak.engine.settle import steps as settle_steps
from pytest_gpuleak.engine.settle.steps import Call, Collection, Settling, settle_steps_of
from pytest_gpuleak.heap.collector import GcView, epochs_supported
from pytest_gpuleak.heap.frames import running_frames
from pytest_gpuleak.heap.safe_access import has_weak_references
from pytest_gpuleak.heap.threads import other_frames, others_work, running_threads

pytestmark = pytest.mark.interpreter


class Array:
    """Something that can be referred to weakly."""

    itself: Array


class Slotted:
    """Something that cannot."""

    __slots__ = ()


class Liar(type):
    """A metaclass whose code is not to be asked."""

    @property
    def __weakrefoffset__(cls) -> int:
        raise AssertionError("asked")


class Honest(metaclass=Liar):
    """An instance of the liar."""


def test_which_objects_have_weak_references() -> None:
    assert has_weak_references(Array())
    assert has_weak_references(Honest())
    assert not has_weak_references(Slotted())
    assert not has_weak_references([])


def test_those_that_stay_are_found_and_others_only_known() -> None:
    kept, circle, slotted = Array(), Array(), Slotted()
    circle.itself = circle
    gc.disable()
    try:
        suspects: list[object] = [kept, circle, slotted]
        gone = id(circle)
        settling = Settling(suspects, running_threads())
        assert suspects == []
        del circle
        settling.run([Collection(1)])
    finally:
        gc.enable()
    assert settling.cycles == {gone}
    assert settling.alive == {id(kept), id(slotted)}
    assert [found is kept for found in settling.found()] == [True]


@pytest.mark.skipif(not epochs_supported(), reason="this interpreter's collector has no epochs")
def test_what_a_finalizer_stores_is_alive_though_its_weak_references_are_cleared() -> None:
    class Saves(Array):
        def __del__(self) -> None:
            saved.append(self)

    view = GcView(SimpleNamespace(user_frozen=False, scanning=False, note=int, moved=int))
    saved: list[object] = []
    gc.disable()
    view.install()
    try:
        view.freeze()
        circle = Saves()
        circle.itself = circle
        suspects: list[object] = [circle]
        known = id(circle)
        settling = Settling(suspects, running_threads())
        del circle
        settling.run([Collection(1)])
        assert saved
        assert settling.alive == {known}
        assert [found is saved[0] for found in settling.found()] == [True]
        assert not settling.cycles
    finally:
        view.thaw()
        view.remove()
        gc.enable()


NO_FRAMEWORKS: Any = SimpleNamespace(members=())
UNBOUNDED: Any = SimpleNamespace(bounded=lambda call, _what, _advice: call())
THREADS = pytest.mark.skipif(sys.platform in ("emscripten", "wasi"), reason="no thread can be started in WebAssembly")


@THREADS
def test_a_cycle_that_a_thread_drops_while_it_is_waited_for_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection before the wait finds it in use; left as garbage, that of two runs would look like growth."""
    suspects: list[object] = []
    made, waited_for, dropped, done = (threading.Event() for _ in range(4))

    def nap(_seconds: float) -> None:
        waited_for.set()
        dropped.wait(60)

    def work() -> None:
        circle = Array()
        circle.itself = circle
        suspects.append(circle)
        made.set()
        waited_for.wait(60)
        del circle
        dropped.set()
        done.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    made.wait(60)
    try:
        known = running_threads()
        settling = Settling(suspects, known)
        settling.run([Collection(2)])
        assert len(settling.alive) == 1
        monkeypatch.setattr(settle_steps, "sleep", nap)
        settling.run(settle_steps_of(UNBOUNDED, NO_FRAMEWORKS, (), known, bool))
        assert waited_for.is_set()
        assert not settling.alive
    finally:
        waited_for.set()
        done.set()
        thread.join()


@THREADS
@pytest.mark.parametrize("by", ["finalizer", "hook"])
def test_what_a_thread_drops_once_a_finalizer_or_the_hook_has_told_it_to_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A pool's threads end once the pool is collected, and each drops what it was last given; the test has left nothing."""
    suspects: list[object] = []
    made, told, waited_for, dropped, done = (threading.Event() for _ in range(5))

    def nap(_seconds: float) -> None:
        if told.is_set():
            waited_for.set()
            dropped.wait(60)

    def work() -> None:
        circle = Array()
        circle.itself = circle
        suspects.append(circle)
        made.set()
        told.wait(60)
        waited_for.wait(60)
        del circle
        dropped.set()
        done.wait(60)

    before = running_threads()
    thread = threading.Thread(target=work)
    thread.start()
    made.wait(60)
    try:
        known = before if by == "finalizer" else running_threads()
        settling = Settling(suspects, known)
        monkeypatch.setattr(settle_steps, "sleep", nap)
        if by == "finalizer":
            pool = Array()
            pool.itself = pool
            weakref.finalize(pool, told.set)
            del pool
        hook = () if by == "finalizer" else (Call(told.set),)
        settling.run(settle_steps_of(UNBOUNDED, NO_FRAMEWORKS, hook, known, lambda _: True))
        assert not settling.alive
    finally:
        for event in (told, waited_for, done):
            event.set()
        thread.join()


@THREADS
@pytest.mark.parametrize(("module", "counts"), [("execnet.gateway_base", False), ("execnets", True), (None, True)])
def test_which_threads_work(module: str | None, counts: bool) -> None:
    """The thread of a worker of pytest-xdist that reads what it is sent makes no garbage of the tests'."""
    before = others_work()
    namespace: dict[str, Any] = {"__name__": module}
    exec("def read(begun, done):\n    begun.set()\n    done.wait(60)", namespace)
    begun, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=namespace["read"], args=(begun, done))
    thread.start()
    begun.wait(60)
    try:
        assert others_work() is (counts or before)
    finally:
        done.set()
        thread.join()


@THREADS
def test_what_a_thread_held_is_gone_once_it_has_ended_though_no_step_is_left() -> None:
    """With a known holder, only a running thread makes a wait worth its time: it may end just before that is asked."""
    known = running_threads()
    stop = threading.Event()
    held: list[object] = [Array()]
    suspects = list(held)

    def work(_value: object) -> None:
        stop.wait(30)

    thread = threading.Thread(target=work, args=(held.pop(),))
    thread.start()
    settling = Settling(suspects, known, threaded=True)
    assert settling.alive
    stop.set()
    thread.join()
    deadline = time.monotonic() + 10
    while not running_threads() <= known and time.monotonic() < deadline:
        time.sleep(0.001)
    settling.run(())
    assert not settling.alive
    assert not settling.cycles


def test_this_thread_is_known_where_gevent_tells_greenlets_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for holders failed there with a KeyError, and the leak had none."""
    own, end = sys._getframe().f_code, threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        with monkeypatch.context() as patched:
            patched.setattr("threading.get_ident", lambda: 7)
            patched.setattr("_thread.get_ident", lambda: 7)
            found = other_frames()
            named = {frame.thread for frame in running_frames(()) if frame.frame.f_code is own}
        assert other.ident in found
        assert len(found) == len(sys._current_frames()) - 1
        assert named == {None}
        found.clear()
    finally:
        end.set()
        other.join()

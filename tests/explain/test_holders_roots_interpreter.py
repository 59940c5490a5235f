"""Roots that the interpreter keeps for itself and hands out when asked, and what it hands out to no one."""

from __future__ import annotations

import atexit
import codecs
import contextvars
import functools
import signal
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.paths import describe
from pytest_gpuleak.heap.lost_signals import LostSignals
from pytest_gpuleak.session.pytest_internals import DeferredFinalizerErrors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.findings import Holder

pytestmark = pytest.mark.interpreter


class Thing:
    """Stands for a tensor."""


def holder_of(box: list[Any]) -> Holder:
    """The holder of what `box` has, the test's own frame left aside."""
    return explain(box, ignore={id(sys._getframe(1))})[0].holder


def evaluated(text: str, **names: object) -> object:
    return eval(text, {"signal": signal, "codecs": codecs, "sys": sys, **names})


def closing_over(value: object) -> Callable[..., object]:
    return lambda *_: value


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the system has no SIGUSR1")
def test_signal_handler_by_the_name_of_the_signal() -> None:
    box = [Thing()]
    before = signal.signal(signal.SIGUSR1, closing_over(box[0]))
    try:
        holder = holder_of(box)
    finally:
        assert holder is not None
        handler = signal.signal(signal.SIGUSR1, before)
    assert (holder.kind, holder.root) == ("module", "signal.getsignal(signal.SIGUSR1)")
    assert holder.text == "signal.getsignal(signal.SIGUSR1).__closure__[0].cell_contents"
    assert holder.path[0].type == "closure variable 'value' of closing_over.<locals>.<lambda>"
    assert holder.file == __file__
    assert handler is not before


def test_profile_function() -> None:
    box = [Thing()]
    before = sys.getprofile()
    sys.setprofile(closing_over(box[0]))
    try:
        holder = holder_of(box)
        assert evaluated(holder.text) is box[0]
    finally:
        sys.setprofile(before)
    assert holder.root == "sys.getprofile()"


def test_hook_beneath_those_of_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    box = [Thing()]
    monkeypatch.setattr(sys, "unraisablehook", closing_over(box[0]))
    signals = LostSignals(closing_over(None))
    signals.install()
    with DeferredFinalizerErrors(pytest.Config.fromdictargs({}, [])):
        holder = holder_of(box)
    assert holder.text == "sys.unraisablehook.__closure__[0].cell_contents"
    signals.remove()
    assert evaluated(holder.text) is box[0]


def test_error_handler_of_codecs() -> None:
    box = [Thing()]
    codecs.register_error("pytest_gpuleak.test", closing_over(box[0]))  # type: ignore[arg-type]
    try:
        holder = holder_of(box)
        assert evaluated(holder.text) is box[0]
    finally:
        codecs.register_error("pytest_gpuleak.test", codecs.strict_errors)
    assert holder.root == "codecs.lookup_error('pytest_gpuleak.test')"


def test_search_function_of_codecs() -> None:
    box = [Thing()]
    search = _searching(box[0])
    reference = weakref.ref(search)
    codecs.register(search)
    del search
    try:
        holder = holder_of(box)
    finally:
        codecs.unregister(reference())  # type: ignore[arg-type]
    assert (holder.kind, holder.root) == ("module", "codec search functions (codecs.register)")
    assert holder.text.endswith("].__closure__[0].cell_contents")


def _searching(value: object) -> Callable[[str], None]:
    def search(_: str) -> None:
        assert value is not None

    return search


def test_context_variable_by_the_global_that_holds_it(app: Any) -> None:
    app.CURRENT = contextvars.ContextVar("current")
    box = [Thing()]
    token = app.CURRENT.set({"model": box[0]})
    try:
        holder = holder_of(box)
        assert evaluated(holder.text, leaky_app=app) is box[0]
    finally:
        app.CURRENT.reset(token)
    assert (holder.kind, holder.text) == ("module", "leaky_app.CURRENT.get()['model']")


def test_context_variable_that_no_global_holds() -> None:
    box = [Thing()]
    variable: contextvars.ContextVar[object] = contextvars.ContextVar("unnamed")
    token = variable.set(box[0])
    try:
        assert holder_of(box).text == "<ContextVar 'unnamed'>.get()"
    finally:
        variable.reset(token)


def test_context_variable_of_another_thread() -> None:
    variable: contextvars.ContextVar[object] = contextvars.ContextVar("per_thread")
    started, finish = threading.Event(), threading.Event()
    box = [Thing()]

    def work() -> None:
        variable.set([box[0]])
        started.set()
        finish.wait()

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    started.wait()
    own = {id(sys._getframe()), id(box)}
    for cell in work.__closure__ or ():
        own.add(id(cell))
    try:
        holder = explain(box, ignore=own)[0].holder
    finally:
        finish.set()
        thread.join()
    # From 3.14 on a thread refers to the context that it was started with.
    owner = "thread 'loader'._context" if sys.version_info >= (3, 14) else "a thread's context"
    assert (holder.kind, holder.text) == ("thread", f"{owner}[<ContextVar 'per_thread'>][0]")


def test_what_stands_in_sys_modules_and_is_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    box = [Thing()]
    monkeypatch.setitem(sys.modules, "lazy_app", types.SimpleNamespace(HISTORY=[box[0]]))
    holder = holder_of(box)
    assert (holder.kind, holder.text) == ("module", "sys.modules['lazy_app'].HISTORY[0]")
    assert evaluated(holder.text) is box[0]


def test_callback_that_atexit_alone_holds() -> None:
    box = [Thing()]
    callback = closing_over(box[0])
    reference = weakref.ref(callback)
    atexit.register(callback)
    del callback
    try:
        holder = holder_of(box)
    finally:
        atexit.unregister(reference())  # type: ignore[arg-type]
    name = f"{__name__}.closing_over.<locals>.<lambda>"
    assert (holder.kind, holder.root) == ("native", f"atexit callback {name}")
    assert holder.text == f"atexit callback {name}: __closure__[0].cell_contents"
    assert (holder.file, holder.line) == (__file__, closing_over.__code__.co_firstlineno + 1)


def test_global_of_a_module_that_is_gone(app: Any) -> None:
    gone: Any = types.ModuleType("gone_app")
    exec("CACHE = []\ndef save(): return CACHE", gone.__dict__)
    gone.CACHE.append(Thing())
    app.HOOK = gone.save
    box = [gone.CACHE[0]]
    del gone
    holder = holder_of(box)
    assert holder.text == "leaky_app.HOOK.__globals__['CACHE'][0]"
    assert holder.path[0].type == "function save of module gone_app, which sys.modules no longer holds"


def test_global_of_an_exec_namespace(app: Any) -> None:
    namespace: dict[str, Any] = {}
    exec("CACHE = []\ndef save(): return CACHE", namespace)
    namespace["CACHE"].append(Thing())
    app.HOOK = namespace["save"]
    box = [namespace["CACHE"][0]]
    del namespace
    holder = holder_of(box)
    assert holder.text == "leaky_app.HOOK.__globals__['CACHE'][0]"
    assert holder.path[0].type == "function save of an exec'd namespace"


def test_global_of_an_earlier_copy_of_a_module(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier: Any = types.ModuleType("reloaded_app")
    exec("CACHE = []\ndef save(): return CACHE", earlier.__dict__)
    monkeypatch.setitem(sys.modules, "reloaded_app", types.ModuleType("reloaded_app"))
    earlier.CACHE.append(Thing())
    app.HOOK = functools.partial(earlier.save)
    box = [earlier.CACHE[0]]
    del earlier
    holder = holder_of(box)
    assert holder.text == "leaky_app.HOOK.func.__globals__['CACHE'][0]"
    assert holder.path[1].type == "function save of an earlier copy of module reloaded_app"


def test_a_function_under_another_modules_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`functools.wraps` gives a wrapper the name and module of what it wraps: its globals are another module's."""
    wrapping: Any = types.ModuleType("wrapping_app")
    exec("def wrap(wrapped):\n def wrapper(): return wrapped\n return wrapper", wrapping.__dict__)
    monkeypatch.setitem(sys.modules, "wrapping_app", wrapping)
    wrapper = functools.wraps(holder_of)(wrapping.wrap(None))
    assert describe(wrapper) == "function holder_of of module wrapping_app"
    assert describe(holder_of) == f"function {__name__}.holder_of"


def test_public_name_beats_the_private_one(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    private: Any = types.ModuleType("_leaky_app")
    monkeypatch.setitem(sys.modules, "_leaky_app", private)
    private.HISTORY = app.HISTORY
    app.HISTORY.append(Thing())
    assert holder_of([app.HISTORY[0]]).root == "leaky_app.HISTORY"

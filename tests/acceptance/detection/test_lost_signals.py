"""A signal that comes while the collector runs does what it does without the plugin."""

from __future__ import annotations

import gc
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from _pytest import unraisableexception

from pytest_gpuleak.heap.collector import epochs_supported
from pytest_gpuleak.heap.lost_signals import LostSignals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Run, Runner

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals as POSIX has them"),
    pytest.mark.skipif(not epochs_supported(), reason="without epochs the collector has no callback of ours"),
]

# On a heap of this size nearly all the time goes into collections.
CALLS = """
        while time.monotonic() < ends:
            gc.collect()
"""
AUTOMATIC = """
        heap = [[] for _ in range(50_000)]
        gc.set_threshold(100, 1, 1)
        while time.monotonic() < ends:
            heap[: len(heap) // 2] = [[] for _ in range(25_000)]
"""
LOOPS = {"calls": CALLS, "automatic": AUTOMATIC}


def run_loop(run: Runner, loop: str, before: str, *options: str) -> Run:
    source = f"""
    import gc, os, signal, threading, time
    import pytest

    {before}
    def test_it():
        threshold = gc.get_threshold()
        ends = time.monotonic() + 20
        try:
            {LOOPS[loop].strip().replace(chr(10), chr(10) + "    ")}
        finally:
            gc.set_threshold(*threshold)

    def test_last():
        pass
    """
    return run(source, *options, apart=True)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_timeout_that_comes_in_a_collection(run: Runner, loop: str) -> None:
    pytest.importorskip("pytest_timeout")
    found = run_loop(run, loop, "@pytest.mark.timeout(0.4, method='signal')")
    found.result.assert_outcomes(passed=1, failed=1)
    assert "Timeout (>0.4s) from pytest-timeout" in found.result.stdout.str()
    assert "PytestUnraisable" not in found.result.stdout.str()
    assert found.verdicts == {"test_it": "unchecked", "test_last": "clean"}


@pytest.mark.skipif(hasattr(unraisableexception, "catch_unraisable_exception"), reason="this pytest is such a one")
def test_a_timeout_that_comes_in_a_collection_under_pytest_before_8_4(run: Runner, pytester: pytest.Pytester) -> None:
    """It replaces the hook in each phase (_pytest/unraisableexception.py of 8.3)."""
    pytest.importorskip("pytest_timeout")
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(
            """
import sys
from _pytest import unraisableexception

def in_each_phase():
    before, told = sys.unraisablehook, []
    sys.unraisablehook = told.append
    yield
    sys.unraisablehook = before

unraisableexception.catch_unraisable_exception = in_each_phase
pytest_runtest_setup = pytest.hookimpl(hookwrapper=True, tryfirst=True)(lambda: (yield from in_each_phase()))
pytest_runtest_call = pytest.hookimpl(hookwrapper=True, tryfirst=True)(lambda: (yield from in_each_phase()))
"""
        )
    found = run_loop(run, "calls", "@pytest.mark.timeout(0.4, method='signal')")
    found.result.assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_interrupt_that_comes_in_a_collection(run: Runner, loop: str) -> None:
    # The handler is set since a shell starts what it runs in the background with SIGINT ignored.
    strike = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    strike += "; threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()"
    found = run_loop(run, loop, strike)
    assert found.result.ret == pytest.ExitCode.INTERRUPTED
    assert found.verdicts == {}
    assert "2 of 2 tests did not run to the end" in found.report["incomplete"]


class Listener:
    """A callback of the collector in which a signal comes, once."""

    def __init__(self) -> None:
        self.signals = LostSignals(self.callback)
        self.phase: str | None = None

    def callback(self, phase: str, info: dict[str, int]) -> None:
        if self.signals.lost:
            self.signals.go_on(phase)
        if phase == self.phase:
            self.phase = None
            signal.raise_signal(signal.SIGUSR1)


@pytest.fixture
def lost() -> Any:
    listener = Listener()
    gc.callbacks.append(listener.callback)
    listener.signals.install()
    yield listener
    listener.signals.remove()
    gc.callbacks.remove(listener.callback)


def unraisable(error: BaseException, obj: object) -> Any:
    return SimpleNamespace(exc_value=error, exc_type=type(error), object=obj, exc_traceback=None, err_msg=None)


def test_what_is_no_signal_s_goes_to_the_hook_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    signals = LostSignals(gc.collect)
    signals.install()
    signals.install()
    for one in (unraisable(ValueError(), gc.collect), unraisable(KeyboardInterrupt(), "another's")):
        sys.unraisablehook(one)
        assert told.pop() is one
    signals.remove()
    assert sys.unraisablehook == told.append


def test_a_hook_that_calls_the_one_before_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    signals = LostSignals(gc.collect)
    signals.install()
    before = sys.unraisablehook

    def chained(one: Any) -> None:
        told.append("chained")
        before(one)

    for hook, expected in ((chained, ["chained", "one"]), (before, ["one"])):
        sys.unraisablehook = hook
        signals.install()
        sys.unraisablehook(unraisable(ValueError(), "one"))
        assert [getattr(entry, "object", entry) for entry in told] == expected
        told.clear()


def test_a_hook_set_later_stays(lost: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(one: Any) -> None:
        pass

    monkeypatch.setattr(sys, "unraisablehook", other)
    lost.signals.remove()
    assert sys.unraisablehook is other


class Owner:
    def handle(self, number: int, frame: object) -> None:
        raise ZeroDivisionError


@pytest.fixture
def handler() -> Iterator[None]:
    previous = signal.signal(signal.SIGUSR1, Owner().handle)
    yield
    signal.signal(signal.SIGUSR1, previous)


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("phase", ["start", "stop"])
def test_what_was_lost_comes_at_the_end_of_the_collection(lost: Listener, phase: str) -> None:
    before = list(gc.callbacks)
    lost.phase = phase
    lost.signals.install()  # in each phase pytest before 8.4 sets a hook of its own
    with pytest.raises(ZeroDivisionError) as caught:
        gc.collect()
    assert "callback" not in [entry.name for entry in caught.traceback]
    gc.collect()  # once is enough
    assert gc.callbacks == before


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("phase", ["start", "stop"])
def test_what_was_lost_in_another_callback_of_ours_comes_too(lost: Listener, phase: str) -> None:
    def other(phase: str, info: dict[str, int]) -> None:
        if raising and phase == raising[0]:
            raising.clear()
            signal.raise_signal(signal.SIGUSR1)

    raising: list[str] = []
    gc.callbacks.append(other)
    lost.signals.others.append(other)
    try:
        raising.append(phase)
        lost.signals.install()  # as above
        with pytest.raises(ZeroDivisionError):
            gc.collect()
        gc.collect()  # once is enough
    finally:
        gc.callbacks.remove(other)


@pytest.mark.usefixtures("handler")
def test_what_was_lost_is_dropped_with_the_hook(lost: Listener) -> None:
    before = list(gc.callbacks)
    lost.signals.lost.append(signal.SIGUSR1)
    lost.signals.go_on("stop")
    assert len(gc.callbacks) == len(before) + 1
    lost.signals.remove()
    assert gc.callbacks == before

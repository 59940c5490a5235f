"""A signal that comes while the collector runs does what it does without the plugin."""

from __future__ import annotations

import gc
import signal
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.collector import epochs_supported
from pytest_gpuleak.lost_signals import LostSignals

if TYPE_CHECKING:
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


@pytest.mark.parametrize("loop", LOOPS)
def test_an_interrupt_that_comes_in_a_collection(run: Runner, loop: str) -> None:
    strike = "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()"
    found = run_loop(run, loop, strike)
    assert found.result.ret == pytest.ExitCode.INTERRUPTED
    assert found.verdicts == {}
    assert "2 of 2 tests did not run to the end" in found.report["incomplete"]


@pytest.fixture
def lost() -> Any:
    def callback(phase: str, info: dict[str, int]) -> None:
        pass

    signals = LostSignals(callback)
    signals.install()
    yield SimpleNamespace(signals=signals, callback=callback)
    signals.remove()


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


def test_a_hook_set_later_stays(lost: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(one: Any) -> None:
        pass

    monkeypatch.setattr(sys, "unraisablehook", other)
    lost.signals.remove()
    assert sys.unraisablehook is other


def test_the_handler_is_told_by_its_frame(lost: Any) -> None:
    class Owner:
        def handle(self, number: int, frame: object) -> None:
            raise ZeroDivisionError

    previous = signal.signal(signal.SIGUSR1, Owner().handle)
    try:
        with pytest.raises(ZeroDivisionError) as caught:
            signal.raise_signal(signal.SIGUSR1)
        assert lost.signals.handles(unraisable(caught.value, lost.callback))
        with pytest.raises(ZeroDivisionError):
            time.sleep(10)
        lost.signals.waits_for_call = True
        assert lost.signals.handles(unraisable(KeyboardInterrupt(), lost.callback))
        with pytest.raises(KeyboardInterrupt):
            lost.signals.deliver()
        lost.signals.deliver()  # once is enough
    finally:
        signal.signal(signal.SIGUSR1, previous)

"""What is watched is stopped or not begun, and a wait of the check's own is bounded."""

from __future__ import annotations

import _thread
import copy
import faulthandler
import gc
import json
import re
import signal
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.nvml.driver import LazyNvml
from pytest_gpuleak.engine import limits
from pytest_gpuleak.engine.settle.steps import BoundedStep
from pytest_gpuleak.engine.stages import CheckTimeoutError
from pytest_gpuleak.model.outcomes import TestRecord, encode_test
from pytest_gpuleak.model.policy import Policy, Settings
from pytest_gpuleak.reports.json.journal import Journal, recover
from pytest_gpuleak.reports.json.read import read_report
from pytest_gpuleak.session.rerun import watchdog
from pytest_gpuleak.session.rerun.watchdog import CannotWatchError, describe_place, watch
from pytest_gpuleak.session.safeguards import RunSafeguards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.interpreter


class Stopped(BaseException):
    """Raised in what is watched."""


class Work:
    """What is watched, and must not be told to hang."""

    text = "a test hangs"

    def takes(self, seconds: float) -> None:
        """Tell nothing."""

    def hangs(self, frame: object, stderr: int) -> None:
        """Fail, since the tests' process would end."""
        raise AssertionError(frame, stderr)

    def over(self) -> None:
        """Set no timer."""


def watched(call: Callable[[], object], limit_s: float = 60.0) -> bool:
    return watch(call, limit_s, Stopped, Work())


def test_what_ends_in_time_is_not_stopped() -> None:
    before, calls = set(sys._current_frames()), []
    for _ in range(20):
        assert not watched(lambda: calls.append(1))
        assert set(sys._current_frames()) == before
    assert len(calls) == 20


@pytest.mark.parametrize("seconds", [0, 60])
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_it_keeps_nothing_of_what_was_watched(seconds: int) -> None:
    class Held:
        pass

    references: list[weakref.ref[Held]] = []

    def begin() -> None:
        held = Held()
        references.append(weakref.ref(held))

        def use() -> Held:
            time.sleep(seconds)
            return held

        watched(use, 0.05)

    gc.disable()
    try:
        begin()
        assert references[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, TimeoutError])
def test_what_it_raises_by_itself_is_passed_on(error: type[BaseException]) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(error):
        watched(fails)


def test_a_watcher_that_never_began_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to Python 3.11 an exception for the thread that started it ends it first (`heap.async_exceptions`)."""
    gone = threading.Thread(target=int)
    gone.start()
    gone.join()
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: gone.ident)
    calls: list[int] = []
    assert not watched(lambda: calls.append(1), 5.0)
    assert calls == [1]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_no_exception_outlives_it_and_no_handler() -> None:
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    for _ in range(3):
        began = time.monotonic()
        assert watched(lambda: time.sleep(60), 0.05)
        assert time.monotonic() - began < 30
    assert [signal.getsignal(number) for number in signal.valid_signals()] == handlers
    time.sleep(0.3)  # one that came late would arrive here


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_it_is_stopped_again_after_it_has_swallowed_an_exception() -> None:
    swallowed: list[type[BaseException]] = []

    def stubborn() -> None:
        while len(swallowed) < 2:
            try:
                time.sleep(60)
            except BaseException as error:  # noqa: BLE001 - as a user's test may
                swallowed.append(type(error))

    assert watched(stubborn, 0.05)
    assert swallowed == [Stopped, Stopped]


def test_a_watch_within_another_thread() -> None:
    results: list[bool] = []

    def loop() -> None:
        while True:
            pass

    thread = threading.Thread(target=lambda: results.append(watched(loop, 0.05)))
    thread.start()
    thread.join(60)
    assert results == [True]


def test_without_a_thread_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    calls: list[int] = []
    with pytest.raises(CannotWatchError):
        watched(lambda: calls.append(1))
    assert calls == []


def test_without_a_timer_of_faulthandlers_it_is_watched_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("unable to start watchdog thread")

    monkeypatch.setattr(faulthandler, "dump_traceback_later", refuse)
    assert not watched(int)


def test_where_something_is() -> None:
    told: list[str] = []
    frame, root = sys._getframe(), str(Path(__file__).parent)

    class Copied:
        def __deepcopy__(self, memo: dict[int, object]) -> Copied:
            told.append(describe_place(sys._getframe(1), root))
            return self

    assert describe_place(frame, root) == f"test_watchdog.py:{frame.f_lineno} (test_where_something_is)"
    copy.deepcopy(Copied())
    here, library = r"test_watchdog\.py:\d+ \(test_where_something_is\)", r"\S*copy\.py:\d+ \(deepcopy\)"
    assert re.fullmatch(f"{here}, which is in {library}", told[0])
    assert describe_place(None, root) == "an unknown place"


@pytest.fixture
def attempts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[RunSafeguards, list[str]]:
    """An attempt that waits, with a short limit, and what is told of it."""
    monkeypatch.setattr(limits, "CHECK_LIMIT_S", 0.1)
    lines: list[str] = []
    log = RunSafeguards(request.config, Settings(True, Policy()), "main", lines)
    log.begin("t.py::test", Policy())
    return log, lines


class Waits:
    """A step that waits in its second step, as a device may."""

    collects = True

    def steps(self) -> Iterator[None]:
        yield
        time.sleep(60)
        yield


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_a_settle_step_that_waits_is_left(attempts: tuple[RunSafeguards, list[str]]) -> None:
    log, lines = attempts
    step = BoundedStep(log, Waits(), "waiting for the device")
    assert step.collects
    assert list(step.steps()) == [None]
    assert lines == ["waiting for the device was stopped after 0.1 s"]


def test_a_driver_that_does_not_answer_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nvml:
        fault = ""

        def start(self) -> None:
            pass

        def read(self) -> dict[str, object]:
            return {"cuda:0": None}

    def bound(call: Callable[[], Any]) -> Any:
        if getattr(call, "__name__", "") == "read":
            raise CheckTimeoutError
        return call()

    monkeypatch.setattr("pytest_gpuleak.adapters.nvml.readings.Nvml", Nvml)
    faults: list[str] = []
    driver = LazyNvml(faults)
    assert driver.read() == {"cuda:0": None}
    driver.bound = bound
    assert (driver.read(), driver.read()) == ({}, {})
    assert faults == ["nvml: a call took too long, and it is no longer asked"]


def test_the_journal_has_a_record_while_a_test_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    journal = Journal(path)
    journal.begin({"created": "2026-01-01T00:00:00+00:00", "environment": {}, "policy": {}})

    def record(name: str, verdict: Any, why: str | None = None) -> dict[str, Any]:
        return encode_test(TestRecord(name, verdict, why, "passed", "main", 1.0, 0.0))

    journal.add_test(record("t.py::first", "clean"), ["t.py::second"])
    journal.note_rerun(record("t.py::second", "unchecked", "it hung" * 50))
    text = path.read_text()
    read = read_report(path)
    assert [(test.nodeid, test.verdict) for test in read.tests] == [
        ("t.py::first", "clean"),
        ("t.py::second", "unchecked"),
    ]
    assert (read.summary["tests"], read.summary["unchecked"], read.summary["running"]) == (2, 1, ["t.py::second"])
    cut = recover(text[: text.index('], "fixtures"')])
    assert cut is not None
    assert len(cut["tests"]) == 2
    # What comes next takes its place.
    journal.note_running(["t.py::second"])
    journal.note_rerun(record("t.py::second", "unchecked", "again"))
    journal.add_test(record("t.py::second", "clean"))
    journal.close()
    document = json.loads(path.read_text())
    assert [test["verdict"] for test in document["tests"]] == ["clean", "clean"]
    assert (document["summary"]["tests"], document["summary"]["unchecked"]) == (2, 0)
    assert journal.fault is None


def test_the_grace_is_stated() -> None:
    assert watchdog.GRACE_S >= 10

"""Reading what `atexit` keeps, and telling it as a holder."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.interpreter


def _script(source: str) -> str:
    """What a process of its own prints: functions given to `atexit` here would be called at the end of the tests."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


HEAD = """
        import atexit, functools, sys
        from unittest import mock
        from pytest_gpuleak.explain.roots.interpreter import exit_callbacks

        class Equal:
            def __eq__(self, other):
                print("user code ran")
                return True

            __hash__ = None

            def __call__(self):
                print("called")

        def last():
            print("last")
"""


def test_all_are_read_and_all_stay() -> None:
    printed = _script(
        HEAD
        + """
        atexit.register(last)
        atexit.register(functools.partial(print, "partial"))
        print([callback is last for callback in exit_callbacks()].count(True), sys.getprofile())
        print(len(exit_callbacks()) >= 2)
        """
    )
    assert printed.splitlines() == ["1 None", "True", "partial", "last"]


def test_no_comparison_of_a_users_runs() -> None:
    printed = _script(
        HEAD
        + """
        kept = mock.MagicMock()
        atexit.register(kept)
        atexit.register(Equal())
        atexit.register(last)
        exit_callbacks()
        print(kept.mock_calls, sys.getprofile())
        """
    )
    assert printed.splitlines() == ["[] None", "last", "called"]


def test_a_profiler_keeps_its_place() -> None:
    printed = _script(
        HEAD
        + """
        def profiler(*_):
            pass

        sys.setprofile(profiler)
        found, kept = exit_callbacks(), sys.getprofile()
        sys.setprofile(None)
        print(found, kept is profiler)
        """
    )
    assert printed.splitlines() == ["[] True"]


SOURCE = """
    import atexit

    SLOT = {}

    class Logger:
        def __init__(self):
            self.batch = Buffer(2**21)
            atexit.register(self.close)

        def close(self):
            pass

    def test_exit():
        Logger()

    def test_exit_and_slot():
        logger = Logger()
        SLOT["last"] = logger.batch
"""


@pytest.mark.slow
def test_a_method_given_to_atexit_is_named_with_its_place(run: Runner) -> None:
    ran = run(SOURCE, apart=True)
    finding = ran.finding("test_exit")
    assert finding["holder"]["text"] == "atexit callback test_it.Logger.close: __self__.batch"
    assert (finding["holder"]["kind"], finding["holder"]["file"], finding["holder"]["line"]) == (
        "native",
        "test_it.py",
        12,
    )
    assert "`atexit.unregister()`" in finding["hint"]
    assert finding["kind"] == "growing"
    # The array that the slot holds is kept by atexit as well.
    both = [
        [finding["holder"]["root"], *[other["root"] for other in finding["other_holders"]]]
        for finding in ran.tests["test_exit_and_slot"]["findings"]
    ]
    assert any("atexit callback test_it.Logger.close" in roots for roots in both)


def test_an_exception_that_waits_for_another_thread_hangs_nothing() -> None:
    # Python 3.11 loops for ever at the entry of a function while a profile function is set and such an exception waits.
    printed = _script(
        HEAD
        + """
        import ctypes, threading
        lock = threading.Lock()
        lock.acquire()
        blocked = threading.Thread(target=lock.acquire, daemon=True)
        blocked.start()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(blocked.ident), ctypes.py_object(ValueError))
        atexit.register(last)
        print(last in exit_callbacks(), sys.getprofile())
        """
    )
    assert printed.splitlines() == ["True None", "last"]

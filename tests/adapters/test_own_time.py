"""The time that a process has had for itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.adapters.processes import own_time
from pytest_gpuleak.adapters.processes.own_time import OwnTime, is_hindered, own_seconds

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SECONDS = st.floats(0, 1000)


@given(SECONDS, SECONDS)
def test_load_makes_no_time_pass_for_a_process_that_wants_to_run(passed: float, used: float) -> None:
    assert own_seconds(passed, used, hindered=False) == passed  # it sleeps or is stopped, whatever else runs
    assert own_seconds(passed, used, hindered=True) <= min(passed, used)


@pytest.mark.parametrize(
    ("states", "used_s", "seconds"),
    [
        ([b"S", b"S"], 0.0, 10),  # another thread sleeps, and holds the interpreter's lock
        ([b"T", b"T"], 0.0, 10),  # stopped
        ([], 0.0, 10),  # not told
        ([b"S", b"R"], 1.0, 10),  # another thread computes, and holds the lock
        ([b"R", b"R"], 2.0, 10),  # two processors in one second: no more passes than by the clock
        ([b"S", b"R"], 0.1, 1),  # ten others want the processor
        ([b"R"], 0.0, 0),
        ([b"D"], 0.0, 0),  # its memory is read from the disk
    ],
)
def test_what_counts(monkeypatch: pytest.MonkeyPatch, states: list[bytes], used_s: float, seconds: float) -> None:
    clock, used = iter(range(100)), iter(range(100))
    monkeypatch.setattr(own_time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(own_time, "_read_used", lambda _: next(used) * used_s)
    monkeypatch.setattr(own_time, "_read_states", lambda _: states)
    process = OwnTime(7)
    for _ in range(10):
        process.look()
    assert process.seconds == pytest.approx(seconds)


@on_linux
def test_readings_of_this_process_and_of_one_that_has_ended() -> None:
    before = own_time._read_used(os.getpid())
    while time.process_time() < before + 0.4:
        pass
    assert own_time._read_used(os.getpid()) >= before + 0.2
    assert is_hindered(own_time._read_states(os.getpid()))  # it runs
    assert (own_time._read_used(0), own_time._read_states(0)) == (0.0, [])


@on_linux
def test_a_stopped_process_is_not_hindered() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        states = own_time._read_states(process.pid)
        process.kill()
    assert states == [b"T"]
    assert not is_hindered(states)

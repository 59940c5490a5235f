"""What a process has had of the processors, and how long it is waited for by that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.adapters.processes.usage import ProcessUse, read_use
from pytest_gpuleak.session.features.children import patience as patience_module
from pytest_gpuleak.session.features.children.patience import HINDERED_S, LOOK_S, Patience

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SECONDS = st.floats(0, 1000)


@given(SECONDS, SECONDS, SECONDS)
def test_load_makes_no_time_pass_for_a_process_that_wants_to_run(before: float, ran: float, passed: float) -> None:
    first = ProcessUse(before, wants=True)
    assert ProcessUse(before + ran, wants=False).own_seconds(first, passed) == passed
    assert ProcessUse(before + ran, wants=True).own_seconds(first, passed) <= min(passed, ran + 1e-9)


@pytest.mark.parametrize(
    ("wants", "ran", "waited_s"),
    [
        (False, 0.0, 1),  # stopped, or another thread sleeps and holds the interpreter's lock
        (True, 1.0, 1),  # another thread computes, and holds the lock
        (True, 2.0, 1),  # on two processors: no more time passes than by the clock
        (True, 0.1, 10),  # ten others want the processor
        (True, 0.0, 1 + HINDERED_S),
    ],
)
def test_a_process_is_waited_for_by_what_it_had(
    monkeypatch: pytest.MonkeyPatch, wants: bool, ran: float, waited_s: float
) -> None:
    now = [0.0]
    monkeypatch.setattr(patience_module, "perf_counter", lambda: now[0])
    monkeypatch.setattr(patience_module, "read_use", lambda _: ProcessUse(now[0] * ran, wants))
    patience = Patience(1.0)
    while patience.spent_on([7, 7]) != {7}:
        now[0] += LOOK_S
    assert now[0] == pytest.approx(waited_s, abs=11 * LOOK_S)


@on_linux
def test_readings_of_this_process_and_of_one_that_has_ended() -> None:
    before = read_use(os.getpid())
    while time.process_time() < before.ran_s + 0.4:
        pass
    now = read_use(os.getpid())
    assert now.ran_s >= before.ran_s + 0.2
    assert now.wants  # it runs
    assert read_use(0) == ProcessUse(0.0, wants=False)


@on_linux
def test_a_stopped_process_wants_nothing() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        use = read_use(process.pid)
        process.kill()
    assert not use.wants

"""Autograd graphs are read only while no other thread can be running one backward."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.torch import backward_pass
from pytest_gpuleak.adapters.torch.backward_pass import no_backward_running
from pytest_gpuleak.adapters.torch.graph_size import retained_by_graph, reveal
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.model.findings import NOT_READ

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.torch, pytest.mark.interpreter]


@pytest.fixture
def backward(torch: Any) -> Iterator[threading.Event]:
    """A thread in the midst of a backward pass; the event lets it go on."""
    inside, go_on = threading.Event(), threading.Event()

    def wait(gradient: Any) -> None:
        inside.set()
        go_on.wait(60)

    def run() -> None:
        leaf = torch.zeros(2, requires_grad=True)
        leaf.register_hook(wait)
        leaf.exp().sum().backward()

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(60)
    yield go_on
    go_on.set()
    thread.join()


def test_a_backward_pass_that_goes_on_forbids_it(backward: threading.Event, torch: Any) -> None:
    before = sys.getswitchinterval()
    with no_backward_running() as resting:
        assert not resting
    loss = torch.ones(2, requires_grad=True).exp()
    assert retained_by_graph([loss], Budget(10**9)) == NOT_READ
    assert reveal({"cpu"}) == {"cpu": None}
    assert retained_by_graph([torch.ones(2)], Budget(10**9)) is None, "no graph, whoever runs one"
    assert sys.getswitchinterval() == before


def await_waits(*threads: threading.Thread) -> None:
    """Let threads come to where they wait."""
    frames = sys._current_frames
    while any(
        frames()[thread.ident or 0].f_code.co_name not in ("wait", "readinto", "__enter__") for thread in threads
    ):
        time.sleep(0.001)


@pytest.fixture
def waiting_user() -> Iterator[None]:
    """A thread of the user's that waits."""
    ended = threading.Event()
    thread = threading.Thread(target=lambda: ended.wait(60))
    thread.start()
    await_waits(thread)
    yield
    ended.set()
    thread.join()


@pytest.fixture
def waiting(request: pytest.FixtureRequest) -> Iterator[str]:
    """A thread that waits, in code of the named module."""
    names: dict[str, Any] = {"__name__": request.param}
    source = "def serve(ended):\n    ended.wait(60)\n"
    exec(source, names)
    ended = threading.Event()
    thread = threading.Thread(target=names["serve"], args=(ended,))
    thread.start()
    await_waits(thread)
    yield request.param
    ended.set()
    thread.join()


@pytest.mark.parametrize(
    ("waiting", "times"),
    [("pytest_rerunfailures", 0), ("execnet.gateway_base", 0), ("execnet_of_mine", 1), ("user_code", 1)],
    indirect=["waiting"],
)
def test_the_lock_is_given_up_for_any_thread_but_a_test_runners_server(
    waiting: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    monkeypatch.setattr(backward_pass, "pause", given.append)
    with no_backward_running() as resting:
        assert resting
    assert len(given) == 2 * times  # before the reading, and after it


def test_threads_that_wait_for_work_do_not_forbid_it() -> None:
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()
    items: queue.Queue[int] = queue.Queue()
    timer = threading.Timer(60, int)
    consumer = threading.Thread(target=items.get)
    ours, theirs = socket.socketpair()
    reader = threading.Thread(target=ours.makefile("rb").readline)
    taken = multiprocessing.Lock()  # as in a worker of a pool, of which one alone reads the queue
    taken.acquire()
    worker = threading.Thread(target=taken.__enter__)
    threads = (timer, consumer, reader, worker)
    for thread in threads:
        thread.start()
    try:
        await_waits(*threads)
        with no_backward_running() as resting:
            assert resting
    finally:
        timer.cancel()
        items.put(0)
        theirs.close()
        taken.release()
        pool.shutdown()
        for thread in threads:
            thread.join()
        ours.close()


SLEEPING = """
    import sys, threading, time
    import torch
    from pytest_gpuleak.adapters.torch.backward_pass import _SLEEP, no_backward_running

    def run():
        leaf = torch.ones(2, requires_grad=True)
        if sys.argv[1] == "hook":
            leaf.register_hook(lambda gradient: time.sleep(600))
        if sys.argv[1] == "alone":
            time.sleep(600)
        leaf.exp().sum().backward()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    told = f"/proc/self/task/{thread.native_id}/syscall"
    try:
        while not open(told, "rb").read().startswith(tuple(_SLEEP.values())):
            time.sleep(0.01)
    except OSError:
        sys.exit("the kernel does not tell")
    with no_backward_running() as resting:
        print(resting)
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="time.sleep does not call clock_nanosleep")
@pytest.mark.parametrize(("where", "resting"), [("alone", "True"), ("hook", "False")])
def test_a_thread_that_sleeps_does_not_forbid_it_unless_a_pass_has_called_it(
    where: str, resting: str, run_with_torch: Any
) -> None:
    done = run_with_torch(SLEEPING, where)
    if "the kernel does not tell" in done.stderr:
        pytest.skip("this kernel does not tell system calls")
    assert done.stdout.strip() == resting, done.stderr


def test_a_thread_that_does_anything_else_forbids_it() -> None:
    ended = threading.Event()
    lock = threading.Lock()
    lock.acquire()

    def run() -> None:
        lock.acquire()  # in C, as a pass could be that user code starts there
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        with no_backward_running() as resting:
            assert not resting
    finally:
        lock.release()
        thread.join()


def test_no_clock_is_read(monkeypatch: pytest.MonkeyPatch, waiting_user: None) -> None:
    for name in ("perf_counter", "monotonic", "time", "process_time"):
        monkeypatch.setattr(time, name, lambda: pytest.fail("a clock was read"))
    with no_backward_running() as resting:
        assert resting


def test_a_long_switch_interval_of_the_users_is_not_waited_for(waiting_user: None) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(5.0)
    try:
        with no_backward_running() as resting:
            assert not resting
        assert sys.getswitchinterval() == 5.0
    finally:
        sys.setswitchinterval(before)


def test_a_hook_of_a_backward_pass_may_not_read_its_graph(torch: Any) -> None:
    asked: list[bool] = []

    def hook(gradient: Any) -> None:
        with no_backward_running() as resting:
            asked.append(resting)

    leaf = torch.zeros(2, requires_grad=True)
    leaf.register_hook(hook)
    leaf.exp().sum().backward()
    assert asked == [False]


def test_other_threads_wait_until_the_reading_is_done() -> None:
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.wait(0.001):
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    went_on: list[bool] = []
    try:
        while len(went_on) < 3:
            with no_backward_running() as resting:
                if resting:  # else the thread was just counting
                    before, end = counted[0], time.perf_counter() + 0.1
                    while time.perf_counter() < end:
                        pass
                    went_on.append(counted[0] != before)
    finally:
        stop.set()
        thread.join()
    assert went_on == [False] * 3


def test_the_interval_comes_back_after_an_error() -> None:
    before = sys.getswitchinterval()
    idle = threading.Event()
    thread = threading.Thread(target=idle.wait)
    thread.start()
    try:
        during = _interval_at_an_error()
    finally:
        idle.set()
        thread.join()
    assert sys.getswitchinterval() == before < during


def _interval_at_an_error() -> float:
    during = 0.0
    with contextlib.suppress(KeyError), no_backward_running():
        during = sys.getswitchinterval()
        raise KeyError
    return during

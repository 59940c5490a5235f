"""Autograd graphs are read only while no other thread can be running one backward."""

from __future__ import annotations

import contextlib
import sys
import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.torch import backward_pass
from pytest_gpuleak.adapters.torch.backward_pass import no_backward_running
from pytest_gpuleak.adapters.torch.graph_size import retained_by_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.torch, pytest.mark.interpreter]


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


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


def test_a_backward_pass_that_goes_on_forbids_it(
    backward: threading.Event, monkeypatch: pytest.MonkeyPatch, torch: Any
) -> None:
    monkeypatch.setattr(backward_pass, "WAIT_S", 0.1)
    before = sys.getswitchinterval()
    with no_backward_running(1.0) as resting:
        assert not resting
    loss = torch.ones(2, requires_grad=True).exp()
    assert retained_by_graph([loss]) is None
    assert sys.getswitchinterval() == before


@pytest.fixture
def waiting(request: pytest.FixtureRequest) -> Iterator[str]:
    """A thread that waits, in code of the named module."""
    names: dict[str, Any] = {"__name__": request.param}
    source = "def serve(started, ended):\n    started.set()\n    ended.wait(60)\n"
    exec(source, names)
    started, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=names["serve"], args=(started, ended))
    thread.start()
    assert started.wait(60)
    yield request.param
    ended.set()
    thread.join()


@pytest.mark.parametrize(
    ("waiting", "times"),
    [("pytest_rerunfailures", 0), ("execnet.gateway_base", 0), ("execnet_of_mine", 1), ("user_code", 1)],
    indirect=["waiting"],
)
def test_time_is_given_to_any_thread_but_a_test_runners_server(
    waiting: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    monkeypatch.setattr(backward_pass, "_let_through", given.append)
    with no_backward_running(1.0) as resting:
        assert resting
    assert len(given) == times


def test_a_clock_that_stands_does_not_hold_it_up(backward: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward_pass, "perf_counter", lambda: 1.0)
    monkeypatch.setattr(backward_pass, "_MOST_LOOKS", 3)
    monkeypatch.setattr(backward_pass, "_MOST_SPINS", 1000)
    before = sys.getswitchinterval()
    with no_backward_running(1.0) as resting:
        assert not resting
    assert sys.getswitchinterval() == before


def test_a_backward_pass_that_ends_is_waited_for(
    backward: threading.Event, monkeypatch: pytest.MonkeyPatch, torch: Any
) -> None:
    monkeypatch.setattr(backward_pass, "WAIT_S", 60.0)
    threading.Timer(0.1, backward.set).start()
    loss = torch.ones(2, requires_grad=True).exp()
    found = retained_by_graph([loss])
    assert found is not None
    assert found.nodes == 2


def test_a_hook_of_a_backward_pass_may_not_read_its_graph(torch: Any) -> None:
    asked: list[bool] = []

    def hook(gradient: Any) -> None:
        with no_backward_running(1.0) as resting:
            asked.append(resting)

    leaf = torch.zeros(2, requires_grad=True)
    leaf.register_hook(hook)
    leaf.exp().sum().backward()
    assert asked == [False]


def test_other_threads_wait_until_the_reading_is_done() -> None:
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    went_on = []
    try:
        for _ in range(3):  # a thread that the system woke late has its turn in the first of them
            with no_backward_running(1.0) as resting:
                assert resting
                before, end = counted[0], perf_counter() + 0.1
                while perf_counter() < end:
                    pass
                went_on.append(counted[0] != before)
    finally:
        stop.set()
        thread.join()
    assert not all(went_on)


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
    with contextlib.suppress(KeyError), no_backward_running(1.0):
        during = sys.getswitchinterval()
        raise KeyError
    return during

"""Processes that still run as a test ends, and those that end when their owner is collected."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.engine.detect.processes import Children

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("psutil")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are started as on POSIX")


class Worker:
    """A process that ends when it is told to, or when its owner is collected."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
        self.end = weakref.finalize(self, self._end, self.process)
        self.itself = self

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.write(b"\n")
            process.stdin.close()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    monkeypatch.setattr("pytest_gpuleak.adapters.processes.facts.MOST_WAITS", 15)  # a busy machine takes its time
    children = Children()
    children.begin()
    return children


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.end()
    worker.process.wait()


def test_what_ends_by_itself_is_not_left(children: Children, worker: Worker) -> None:
    assert children.suspects()
    worker.end()
    assert children.left() == []


def test_what_a_young_cycle_owns_is_not_left(children: Children) -> None:
    process = Worker().process
    assert children.suspects()
    assert children.left() == []
    process.wait()


def test_what_an_old_cycle_owns_is_not_left(children: Children) -> None:
    worker = Worker()
    process = worker.process
    gc.collect()
    del worker
    assert children.left() == []
    process.wait()


def test_waits_in_vain_change_nothing_for_those_that_follow(
    children: Children, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_gpuleak.adapters.processes.facts.MOST_WAITS", 1)
    for _ in range(12):
        assert [process.pid for process in children.left()] == [worker.process.pid]

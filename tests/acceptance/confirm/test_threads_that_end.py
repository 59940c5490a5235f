"""An array in the hands of a thread that ends while the test is judged is freed late, and was in no cycle."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.engine.settle.steps import Collection, Settling
from pytest_gpuleak.heap.threads import running_threads
from tests.support.standin import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Runner

pytestmark = pytest.mark.interpreter


def test_a_thread_that_ends_at_any_moment_of_the_check_leaves_no_cycle(run: Runner) -> None:
    found = run(
        """
        import threading, time
        import pytest

        @pytest.mark.parametrize("wait", range(24))
        def test_it(wait):
            threading.Thread(target=lambda value: time.sleep(wait / 2000), args=(Buffer(100),)).start()
        """,
        apart=True,
    )
    assert set(found.verdicts.values()) == {"clean"}


class EndsBetween:
    """A step after which the thread ends, before the next one begins."""

    collects = True

    def __init__(self, stop: threading.Event, thread: threading.Thread, known: frozenset[int]) -> None:
        self._stop, self._thread, self._known = stop, thread, known

    def steps(self) -> Iterator[None]:
        yield
        # The step is over: what has gone was looked at.
        self._stop.set()
        self._thread.join()
        while not running_threads() <= self._known:
            time.sleep(0.001)


@pytest.mark.parametrize("cyclic", [False, True])
def test_what_went_between_two_settle_steps_is_no_cycle(*, cyclic: bool) -> None:
    known = running_threads()
    stop = threading.Event()
    held: list[object] = [Buffer()]
    suspects: list[object] = list(held)
    if cyclic:
        # Garbage that the thread had nothing to do with is a cycle all the same.
        loop: list[object] = [Buffer()]
        loop.append(loop)
        suspects.append(loop[0])
        del loop

    def work(value: object) -> None:
        stop.wait(30)

    thread = threading.Thread(target=work, args=(held.pop(),))
    thread.start()
    settling = Settling(suspects, known, threaded=True)
    settling.run([EndsBetween(stop, thread, known), Collection(2)])
    assert not settling.alive
    assert len(settling.cycles) == int(cyclic)

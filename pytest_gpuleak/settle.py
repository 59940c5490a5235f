"""Settling: give memory that is on its way out the chance to go, cheapest rung first.

Each rung is one object behind `Rung`; the ladder stops at the first after which nothing is left. Rungs for devices
(synchronise, clear workspaces) take their place between the collections and the hook.
"""

from __future__ import annotations

import dataclasses
import weakref
from time import sleep
from typing import TYPE_CHECKING, Protocol

from pytest_gpuleak.collector import collect
from pytest_gpuleak.threads import running_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FIRST_WAIT_S = 1e-6
LONGEST_WAIT_S = 0.1
ALL_WAITS_S = 0.45
"""Waits double from a microsecond to a tenth of a second, under half a second in all (goleak's options.go)."""
KNOWN_THREADS_WAIT_S = 0.02


class Rung(Protocol):
    """One way to let memory go."""

    @property
    def collects(self) -> bool:
        """Whether what it frees was garbage that only a collection found: a cycle."""

    def steps(self) -> Iterator[None]:
        """Act; yield after each step that may have freed something."""


@dataclasses.dataclass(frozen=True)
class Collection:
    """A garbage collection of the generations up to `generation`.

    With `generation` 2 the epoch's callback thaws the heap, so that it is a full one.
    """

    generation: int
    collects: bool = True

    def steps(self) -> Iterator[None]:
        """Collect once."""
        collect(self.generation)
        yield


@dataclasses.dataclass(frozen=True)
class Call:
    """A function to call: a hook, a cache's own way to be cleared."""

    function: Callable[[], None]
    collects: bool = False

    def steps(self) -> Iterator[None]:
        """Call it once; what it let go may have been in a cycle, which is no fault of the test's."""
        self.function()
        yield
        collect(2)
        yield


@dataclasses.dataclass(frozen=True)
class Waits:
    """Short waits, doubling, for what other threads free late.

    Attributes:
        known: threads that ran before the test. They too may free something late, but are not waited for as long as
            threads that the test started; with one thread nobody could, so there are no waits.
    """

    known: frozenset[int] = frozenset()

    @property
    def collects(self) -> bool:
        """What goes meanwhile was no garbage."""
        return False

    def steps(self) -> Iterator[None]:
        """Wait up to `ALL_WAITS_S` in all, or `KNOWN_THREADS_WAIT_S`."""
        wait, waited = FIRST_WAIT_S, 0.0
        while True:
            threads = running_threads()
            limit = ALL_WAITS_S if threads - self.known else KNOWN_THREADS_WAIT_S
            if len(threads) < 2 or waited + wait > limit:
                return
            sleep(wait)
            waited += wait
            wait = min(wait * 2, LONGEST_WAIT_S)
            yield


@dataclasses.dataclass(frozen=True)
class Settled:
    """What became of the suspects.

    Attributes:
        alive: ids of the arrays that are still alive.
        cycles: ids of those that only a garbage collection freed.
    """

    alive: set[int]
    cycles: set[int]


def settle(suspects: list[object], rungs: Sequence[Rung]) -> Settled:
    """Climb the rungs until none of the suspects is alive.

    Args:
        suspects: strong references to the arrays; **emptied** here, since a reference left in the caller's list would
            keep them all alive.
        rungs: in the order to climb.
    """
    threads = running_threads()
    references = {id(suspect): _weak(suspect) for suspect in suspects}
    suspects.clear()
    # What dies with these references was in garbage that an automatic collection has found since the look.
    alive = _alive(references)
    cycles = set(references) - alive if threads <= running_threads() else set()
    for rung in rungs:
        if not alive:
            break
        threads = running_threads()
        for _ in rung.steps():
            left = _alive(references)
            # What a thread held that ended meanwhile was no cycle.
            if rung.collects and threads <= running_threads():
                cycles |= alive - left
            alive = left
            if not alive:
                break
    return Settled(alive, cycles)


def _weak(suspect: object) -> Callable[[], object | None]:
    try:
        return weakref.ref(suspect)
    except TypeError:
        # An array type without weak references: the look at the heap afterwards tells whether it is still there.
        return lambda: True


def _alive(references: dict[int, Callable[[], object | None]]) -> set[int]:
    return {identity for identity, reference in references.items() if reference() is not None}

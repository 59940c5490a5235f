"""Settling: give memory that is on its way out the chance to go, cheapest rung first.

Each rung is one object behind `Rung`; the ladder stops at the first after which nothing is left. Rungs for devices
(synchronise, clear workspaces) take their place between the collections and the hook.
"""

from __future__ import annotations

import dataclasses
import weakref
from time import sleep
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.engine.stages import CheckTimeoutError
from pytest_gpuleak.heap.collector import collect, collect_young
from pytest_gpuleak.heap.threads import running_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import Rung
    from pytest_gpuleak.engine.stages import Safeguards

_END: Any = object()

FIRST_WAIT_S = 1e-6
LONGEST_WAIT_S = 0.1
ALL_WAITS_S = 0.45
"""Waits double from a microsecond to a tenth of a second, under half a second in all (goleak's options.go)."""
KNOWN_THREADS_WAIT_S = 0.02

DEVICE_WAIT = "waiting for the device"
"""What a rung of a framework's is bounded as, unless it says so itself."""


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
class YoungCollection:
    """A full collection of what was born in the epoch alone: what has survived a young one by its age.

    Cheap beside the one of the whole heap, which is left for what hangs together with older objects.
    """

    collects: bool = True

    def steps(self) -> Iterator[None]:
        """Collect once."""
        collect_young()
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


class BoundedRung:
    """A rung whose steps may wait for something: each is stopped after a while, and is then the last one.

    Args:
        safeguards: bound each step, and take a line where one was stopped.
        rung: climbed as it is.
        what: what it waits for, in words.
    """

    def __init__(self, safeguards: Safeguards, rung: Rung, what: str) -> None:
        self._safeguards = safeguards
        self._rung = rung
        self._what = what

    @property
    def collects(self) -> bool:
        """See `Rung`."""
        return self._rung.collects

    def steps(self) -> Iterator[None]:
        """See `Rung`."""
        steps = self._rung.steps()
        advice = "look at what it waits for"
        try:
            while self._safeguards.bounded(lambda: next(steps, _END), self._what, advice) is not _END:
                yield
        except CheckTimeoutError as error:
            self._safeguards.tell(f"{self._what} was stopped after {error.limit_s:g} s")


def full_collection(safeguards: Safeguards) -> Rung:
    """Return the rung of a full collection: a ``__del__`` that it calls may wait for ever."""
    return BoundedRung(safeguards, Collection(2), "a finalizer that a garbage collection called")


def device_rungs(safeguards: Safeguards, frameworks: Frameworks) -> list[Rung]:
    """Return the rungs that let memory of the devices go, bounded: a device may never be done."""
    found: list[Rung] = []
    for framework in frameworks.members:
        try:
            rungs = framework.settle_steps()
        except Exception as error:  # noqa: BLE001 - a device may be lost during a run, which goes on
            safeguards.tell(f"{framework.name} cannot be settled: {type(error).__name__}: {error}")
        else:
            found += [BoundedRung(safeguards, rung, getattr(rung, "what", DEVICE_WAIT)) for rung in rungs]
    return found


def settle_rungs(
    safeguards: Safeguards,
    frameworks: Frameworks,
    own: Callable[[], Iterable[Rung]],
    known: frozenset[int],
) -> Iterator[Rung]:
    """Yield the ladder for a suspect; each rung is made when the one below has not been enough.

    Args:
        safeguards: bound what may wait.
        frameworks: let memory of their devices go.
        own: gives the user's own ways to let memory go.
        known: threads that ran before the test.
    """
    yield full_collection(safeguards)
    yield from device_rungs(safeguards, frameworks)
    yield from own()
    yield Waits(known)


def rungs_for_held(rungs: Iterable[Rung], known: frozenset[int]) -> list[Rung]:
    """Those of the rungs that may free what a root holds: calls, and waits while a thread of the test's own runs.

    A collection frees nothing that can be reached, and threads that ran before the test are rarely worth a wait where
    the root has leaked before.

    Args:
        rungs: the ladder.
        known: threads that ran before the test.
    """
    own_threads = bool(running_threads() - known)
    return [rung for rung in rungs if isinstance(rung, Call) or (own_threads and isinstance(rung, Waits))]


class Settling:
    """Climbs rungs until none of the suspects is alive.

    Args:
        suspects: strong references to the arrays; **emptied** here, since a reference left in the caller's list would
            keep them all alive.
        known: threads that ran before the test. While another one runs, what goes may have been in its hands, and it is
            not taken for a cycle: a thread lets go of its arguments just before it ends.
        threaded: whether such a thread ran when the suspects were looked for.

    Attributes:
        alive: ids of the arrays that are still alive.
        cycles: ids of those that only a garbage collection freed.
    """

    def __init__(self, suspects: list[object], known: frozenset[int], *, threaded: bool = False) -> None:
        self._known = known
        self._threaded = threaded
        self._references = {id(suspect): _weak(suspect) for suspect in suspects}
        suspects.clear()
        # What dies with these references was in garbage that an automatic collection has found since the look.
        self.alive = self._still_alive()
        self.cycles = set() if threaded else set(self._references) - self.alive

    def climb(self, rungs: Iterable[Rung]) -> None:
        """Climb these rungs, in their order."""
        if not self.alive:
            return
        for rung in rungs:
            alone = self._no_thread_runs()
            if alone and self._threaded:
                # The thread has ended since the last look, and what it held went with it, not with what comes now.
                self.alive = self._still_alive()
                if not self.alive:
                    return
            self._threaded = not alone
            for _ in rung.steps():
                left = self._still_alive()
                if rung.collects and alone:
                    self.cycles |= self.alive - left
                self.alive = left
                if not self.alive:
                    return

    def found(self) -> Iterator[object]:
        """Those alive that can be found: all but arrays of a type without weak references."""
        for identity in self.alive:
            suspect = self._references[identity]()
            if id(suspect) == identity:
                yield suspect

    def _no_thread_runs(self) -> bool:
        """Whether no thread runs that the test has started."""
        return running_threads() <= self._known

    def _still_alive(self) -> set[int]:
        return {identity for identity, reference in self._references.items() if reference() is not None}


def has_weak_references(suspect: object) -> bool:
    """Whether objects of its type can be referred to weakly; its code is not asked."""
    return bool(_weak_reference_offset(type(suspect)))


_weak_reference_offset = type.__dict__["__weakrefoffset__"].__get__


def _weak(suspect: object) -> Callable[[], object | None]:
    # Of a type without weak references: the look at the heap afterwards tells whether it is still there.
    return weakref.ref(suspect) if has_weak_references(suspect) else lambda: True

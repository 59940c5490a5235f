"""Settle: let memory that is about to be freed go, cheapest step first, until nothing is left."""

from __future__ import annotations

import dataclasses
from time import sleep
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.engine.limits import ALL_WAITS_S, FIRST_WAIT_S, KNOWN_THREADS_WAIT_S, LONGEST_WAIT_S, MOST_ROUNDS
from pytest_gpuleak.engine.stages import CheckTimeoutError
from pytest_gpuleak.heap.collector import collect_recent, collect_whole, collect_young, current_view, get_objects
from pytest_gpuleak.heap.safe_access import weak_reference
from pytest_gpuleak.heap.threads import others_work, running_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import SettleStep
    from pytest_gpuleak.engine.stages import Safeguards

_END: Any = object()

DEVICE_WAIT = "waiting for the device"
"""Default description of a framework's step, for a message that it was stopped."""


@dataclasses.dataclass(frozen=True)
class Collection:
    """Collect the young objects (`generation` 1) or all (2): then the epoch's callback thaws the heap."""

    generation: int
    collects: bool = True

    def steps(self) -> Iterator[None]:
        """Collect once."""
        if self.generation < 2:
            collect_recent()
        else:
            collect_whole()
        yield


@dataclasses.dataclass(frozen=True)
class YoungCollection:
    """Collect everything born in the epoch, survivors of young collections included: cheaper than the whole heap."""

    collects: bool = True

    def steps(self) -> Iterator[None]:
        """Collect until nothing is found to be garbage."""
        for _ in range(MOST_ROUNDS):
            found = collect_young()
            yield
            if not found:
                return


CHEAP_STEPS = (Collection(1), YoungCollection())
"""Steps that run before any step that walks the whole heap."""


@dataclasses.dataclass(frozen=True)
class Call:
    """Call a function: a hook, or a cache's own way to be cleared."""

    function: Callable[[], None]
    collects: bool = False

    def steps(self) -> Iterator[None]:
        """Call it, then collect: what the call released may be in a cycle, which is not reported against the test."""
        self.function()
        yield
        collect_whole()
        yield


@dataclasses.dataclass(frozen=True)
class Waits:
    """Wait, doubling, for what other threads free late: less for threads `known` before the test, alone not at all."""

    known: frozenset[int] = frozenset()
    collects: bool = False

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


class BoundedStep:
    """Limit the time of a step that waits for `what`; a step that was stopped is the last."""

    def __init__(self, safeguards: Safeguards, step: SettleStep, what: str) -> None:
        self._safeguards = safeguards
        self._step = step
        self._what = what
        self.collects = step.collects

    def steps(self) -> Iterator[None]:
        """Take the bounded step's steps within the limit."""
        steps = self._step.steps()
        advice = "look at what it waits for"
        try:
            while self._safeguards.bounded(lambda: next(steps, _END), self._what, advice) is not _END:
                yield
        except CheckTimeoutError as error:
            self._safeguards.tell(f"{self._what} was stopped after {error.limit_s:g} s")


def full_collection(safeguards: Safeguards) -> SettleStep:
    """Return the step of a full collection, bounded because a ``__del__`` that it calls may wait for ever."""
    return BoundedStep(safeguards, Collection(2), "a finalizer that a garbage collection called")


def device_steps(safeguards: Safeguards, frameworks: Frameworks) -> list[SettleStep]:
    """Return the steps that free memory of the devices, bounded because a device may never finish."""
    found: list[SettleStep] = []
    for framework in frameworks.members:
        try:
            settle_steps = framework.settle_steps()
        except Exception as error:  # noqa: BLE001 - a device may be lost during a run, which goes on
            safeguards.tell(f"{framework.name} cannot be settled: {type(error).__name__}: {error}")
        else:
            found += [BoundedStep(safeguards, step, getattr(step, "what", DEVICE_WAIT)) for step in settle_steps]
    return found


def settle_steps_of(
    safeguards: Safeguards,
    frameworks: Frameworks,
    users: Sequence[SettleStep],
    known: frozenset[int],
    may_be_garbage: Callable[[bool], bool],
) -> Iterator[SettleStep]:
    """Yield the steps for a suspect, each when those before did not suffice; `users` are the user's.

    `may_be_garbage` tells whether a collection may free anything, and is told whether threads were waited for: what a thread
    drops may be in a cycle, and that of two runs would look like growth. Threads of the test's own are waited for last, and
    with steps of the user's all: a finalizer (a pool's) may end them, or such a step.
    """
    waits_first = others_work() and not users and running_threads() <= known
    if waits_first:
        yield Waits(known)
    if may_be_garbage(waits_first):
        yield full_collection(safeguards)
    yield from device_steps(safeguards, frameworks)
    yield from users
    if not waits_first:
        yield Waits(known)
        if others_work() and may_be_garbage(True):
            yield full_collection(safeguards)


def rounds(step: SettleStep, alive: Callable[[], int]) -> Iterator[None]:
    """Take a step; one that collects again, as long as it has freed some and `alive` tells that some are left."""
    for _ in range(MOST_ROUNDS if step.collects else 1):
        before = alive()
        yield from step.steps()
        if alive() in (0, before):
            return


class Settling:
    """Take settle steps until no suspect is `alive`; a garbage collection alone has freed those in `cycles`.

    `suspects` is **emptied**, since the caller's list would keep the arrays alive. While a thread that the test started
    (not `known`) runs, an array that dies may have been its argument, which it drops just before it ends: that is no
    cycle. `threaded` tells whether such a thread ran when the suspects were searched for.
    """

    def __init__(self, suspects: list[object], known: frozenset[int], *, threaded: bool = False) -> None:
        self._known = known
        self._threaded = threaded
        self._references = {id(suspect): _weak(suspect) for suspect in suspects}
        self._types = {id(suspect): id(type(suspect)) for suspect in suspects}  # ids: a type may be garbage too
        suspects.clear()
        # Arrays that are gone by now were freed by an automatic collection since they were listed, so they were in a
        # cycle.
        self.alive = self._still_alive()
        self.cycles = set() if threaded else set(self._references) - self.alive

    def run(self, settle_steps: Iterable[SettleStep]) -> None:
        """Take these steps, in order."""
        if not self.alive:
            return
        for step in settle_steps:
            alone = self._is_alone()
            if not self.alive:
                return
            for _ in rounds(step, lambda: len(self.alive)):
                left = self._still_alive()
                if step.collects:
                    left |= self._saved_by_finalizers(self.alive - left)
                    if alone:
                        self.cycles |= self.alive - left
                self.alive = left
                if not self.alive:
                    return
        self._is_alone()  # no step may be left, or none was worth it, because the thread has ended meanwhile

    def _is_alone(self) -> bool:
        """Tell whether no thread of the test's own runs; what one held that has ended died with it, and by no step."""
        alone = running_threads() <= self._known
        if alone and self._threaded:
            self.alive = self._still_alive()
        self._threaded = not alone
        return alone

    def leave_out(self, identities: AbstractSet[int]) -> None:
        """Treat these suspects as none: further steps are not taken for them."""
        self.alive -= identities
        for identity in identities:
            self._references.pop(identity, None)

    def found(self) -> Iterator[object]:
        """Yield the living suspects, except arrays of a type without weak references."""
        for identity in self.alive:
            # What outlives its array, such as a storage, was added later and has no reference here.
            reference = self._references.get(identity)
            suspect = None if reference is None else reference()
            if suspect is not None and id(suspect) == identity:
                yield suspect

    def _saved_by_finalizers(self, gone: set[int]) -> set[int]:
        """Return those that a ``__del__`` has stored: a collection clears weak references before it calls finalizers.

        Only where young objects alone are visible, so that the look takes microseconds (``handle_weakrefs`` and
        ``finalize_garbage``, Modules/gcmodule.c).
        """
        view = current_view() if gone else None
        if view is None or not view.sees_only_young:
            return set()
        saved = {id(one): one for one in get_objects() if id(one) in gone and id(type(one)) == self._types[id(one)]}
        self._references.update((identity, _weak(one)) for identity, one in saved.items())
        return set(saved)

    def _still_alive(self) -> set[int]:
        return {identity for identity, reference in self._references.items() if reference() is not None}


def _weak(suspect: object) -> Callable[[], object | None]:
    # For a type without weak references, the next search of the heap tells whether it is alive.
    return weak_reference(suspect) or (lambda: True)

"""Know how each array died that a suspect's runs left, and tell what that means for the evidence. Pure, but for handles."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pytest_gpuleak.adapters.bulk import Held

    Cause = Literal["count", "thread", "collection", "settled"]
    """What freed an array: its last reference went, maybe in another thread, a collection of the whole heap, or a step of the
    settling."""


class Left:
    """An array that a run (0: the first) left, or that is older (-1). `shared`: another may use its storage.

    Once it is dead, `cause` tells what freed it, and `died_in` during or after which run.
    """

    __slots__ = ("cause", "died_in", "held", "index", "run", "shared")

    def __init__(self, run: int, held: Held, index: int, *, shared: bool = False) -> None:
        self.run = run
        self.held = held
        self.index = index
        self.shared = shared
        self.cause: Cause | None = None
        self.died_in = -1

    def was_alive(self, run: int) -> bool:
        """Tell whether it was there when a run had ended. What the settling frees was about to go before that run."""
        if self.cause is None:
            return self.run <= run
        return self.run <= run < self.died_in - (self.cause == "settled")

    def is_at(self, identity: int, storage: int) -> bool:
        """Tell whether a living array with this array's id is this one, by its key: a later array may have the id."""
        # Where a user's framework fails, a key is the array's id: `GuardedArrays.storage`, and its `hold`.
        return storage in (self.held.handle.storage, self.held.reading.storage, identity)


def alive_after(left: Iterable[Left], run: int) -> frozenset[int]:
    """Return the survivors' indices of what was alive when a run had ended."""
    return frozenset(one.index for one in left if one.was_alive(run))


def garbage_of_first(left: Iterable[Left]) -> list[Left]:
    """Return what a collection freed before the first re-run: nothing can have replaced it."""
    return [one for one in left if one.cause == "collection" and one.died_in == one.run == 0]


def collected_in(left: Iterable[Left], exact: Collection[int]) -> dict[int, set[int]]:
    """Return by re-run the indices of what a collection freed in it: garbage, or replaced through a cycle.

    In one that began from a settled heap (`exact`) nothing was garbage.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for one in left:
        if one.cause == "collection" and one.died_in > one.run and one.died_in not in exact:
            found[one.died_in].add(one.index)
    return found


def doubt_older(older: Iterable[Left], run: int) -> None:
    """Mark the older arrays that died in a run beside other threads: these let go, and end, when they like.

    A leak was a note where a worker thread dropped in the re-run what an earlier test had left with it.
    """
    for one in older:
        if one.died_in == run and one.cause == "count":
            one.cause = "thread"


def let_go_in(older: Iterable[Left], exact: Collection[int]) -> tuple[list[Left], set[int]]:
    """Return the older arrays that re-runs let go, and the re-runs in which others went, of which it is not known.

    What a collection freed was garbage, unless the run began from a settled heap (`exact`). Another thread lets go of arrays
    when it likes: what dies beside one counts where arrays have died so in the re-run before, too.
    """
    by_thread = {one.died_in for one in older if one.cause == "thread"}
    known = {"collection": set(exact), "thread": {run for run in by_thread if run - 1 in by_thread}}
    let_go: list[Left] = []
    doubtful: set[int] = set()
    for one in older:
        if one.cause == "count" or (one.cause in known and one.died_in in known[one.cause]):
            let_go.append(one)
        elif one.cause in known:
            doubtful.add(one.died_in)
    return let_go, doubtful

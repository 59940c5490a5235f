"""Keep the arrays that each run of a suspect left behind: ids, metadata and weak handles, no array."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import framework_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework, StorageHandle
    from pytest_gpuleak.engine.confirm.survivors import Leftover
    from pytest_gpuleak.model.readings import ArrayReading

MANY_ARRAYS = 10_000
"""From this many arrays on, their sum is taken once a run and not after each step of the settling."""

FIRST_RERUN = 2
"""Number of runs once a test was run again."""


class LeftArrays:
    """The arrays of all `runs` that have ended, `by_id`: a later array at the same address replaces a dead one."""

    def __init__(self, frameworks: Sequence[ArrayFramework]) -> None:
        self.by_id: dict[int, Leftover] = {}
        self.runs = 0
        self._frameworks = frameworks
        self._handles: dict[int, StorageHandle] = {}
        self._standing: set[int] = set()  # ids of the arrays that were alive when the last run began
        self._met: set[int] = set()  # ids of the arrays that the last search of the heap met
        self._dead: set[int] = set()  # ids of arrays that had died when the last run began
        self._added: tuple[dict[str, int], int] | None = None

    def take_in(self, left: Mapping[int, Leftover], handles: Mapping[int, StorageHandle]) -> None:
        """Add what a run has left."""
        self._added = None
        self.by_id.update(left)
        self._dead -= left.keys()
        self._handles.update({identity: handles[identity] for identity in left})

    def expect_run(self) -> None:
        """Note which arrays are alive before a re-run begins."""
        self._standing = self.living()
        self._dead = self.by_id.keys() - self._standing - self._met
        self._added = None

    def changed(self) -> None:
        """Note that some were freed, or taken out of `by_id`."""
        self._added = None

    def forget_reruns(self) -> None:
        """Forget what re-runs have left."""
        self.by_id = {identity: left for identity, left in self.by_id.items() if left.run == 0}
        self.runs = min(self.runs, 1)
        self._added = None

    def living(self) -> set[int]:
        """Return the ids of the arrays whose memory still exists."""
        return {identity for identity in self.by_id if self._handles[identity].alive()}

    def living_by_age(self) -> tuple[set[int], set[int]]:
        """Return the ids of what is alive of the last run, and of the runs before it."""
        living = self.living()
        young = {identity for identity in living if self.by_id[identity].run == self.runs - 1}
        return young, living - young

    def are_all_gone(self) -> bool:
        """Tell whether arrays were left, none of whose memory still exists."""
        return bool(self.by_id) and not any(self._handles[identity].alive() for identity in self.by_id)

    def readings(self) -> dict[int, ArrayReading]:
        """Return the metadata of all arrays, dead ones included, by id."""
        return {identity: left.reading for identity, left in self.by_id.items()}

    def handle(self, identity: int) -> StorageHandle:
        """Return the weak handle on an array's memory."""
        return self._handles[identity]

    def objects(self, identities: Iterable[int]) -> Iterator[object]:
        """Yield the living arrays that their weak handles lead to: that takes no walk over the heap."""
        for identity in identities:
            reference = getattr(self._handles[identity], "array", None)
            array = None if reference is None else reference()
            if array is not None and id(array) == identity:
                yield array

    def is_left(self, array: object) -> bool:
        """Tell whether a living array is one of these: a later array may have its id."""
        handle = self._handles[id(array)] if id(array) in self.by_id else None
        if handle is None or not handle.alive():
            return False
        key = framework_of(array, self._frameworks).storage(array)
        # Where a user's framework fails, a key is the array's id: `GuardedArrays.storage`, and its `hold`.
        return key in (handle.storage, self.by_id[id(array)].reading.storage, id(array))

    def choose_left(self, arrays: Iterable[object], young: Container[int]) -> list[object]:
        """Return those of all living arrays that were left; `young` are the ids of those made since the last run began.

        An old array may have changed its memory (``torch.utils.swap_tensors``). A young one that is not known by its
        memory has the address of a dead one: a settle hook made it, or reading a graph gave a saved tensor its object.
        """
        found = [
            array
            for array in arrays
            if (identity := id(array)) in self.by_id
            and identity not in self._dead
            and (identity not in young or self.is_left(array))
        ]
        self._met = set(map(id, found))
        return found

    def added(self) -> tuple[dict[str, int], int]:
        """Return the bytes by device, and the number, of storages that the last run left, less what it released."""
        if self._added is None or len(self.by_id) <= MANY_ARRAYS:
            moved, sizes = list(self.moved_storages()), Counter[str]()
            for reading, sign in moved:
                for device, size in reading.places():
                    sizes[device] += sign * size
            self._added = sizes, sum(sign for _, sign in moved)
        return self._added

    def moved_storages(self) -> Iterator[tuple[ArrayReading, int]]:
        """Yield a reading of each storage that the last run left (1) or released (-1)."""
        met: set[int] = set()
        for identity, (run, reading) in self.by_id.items():
            new = run == self.runs - 1
            gone = not new and identity in self._standing and not self._handles[identity].alive()
            if (new or gone) and reading.storage not in met:
                met.add(reading.storage)
                yield reading, 1 if new else -1

"""Know the arrays that the collector does not track and that are older than the running test, as far as known.

Those of modules when the first run began, of wider fixtures' setups, and what walks over the heap have met since. What a
test lets go of them hides as much of what it adds: the host's counter tells their sum.
"""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.registry import (
    arrays_in,
    have_added_arrays,
    may_have_untracked_arrays,
    module_arrays,
    untracked_array_counts,
    untracked_arrays,
)
from pytest_gpuleak.heap.collector import get_objects

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.untracked import MetArrays
    from pytest_gpuleak.engine.detect.protocol import FixtureKey
    from pytest_gpuleak.model.readings import MemoryRange


class _Followed(weakref.ref[Any]):
    __slots__ = ("group", "key", "size")
    group: int
    key: int
    size: int


class UntrackedOlder:
    """The older arrays of one process, by weak references and plain data."""

    def __init__(self) -> None:
        self._met: MetArrays | None = None
        self._of_fixtures: dict[FixtureKey, MetArrays] = {}
        self._followed: dict[int, _Followed] = {}
        # Of each test that re-runs have added to, and first of all others: bytes that are alive, and those of the re-runs.
        self._standing: list[int] = [0]
        self._extra: list[int] = [0]
        self._gone: Counter[int] = Counter()
        # What had gone, and the counts, when a running setup or teardown began, outermost first.
        self._before: list[tuple[Counter[int], list[int]]] = []
        self._counts: list[int] = []
        self._collecting = False

    def begin_run(self) -> None:
        """Begin a run, and note the arrays of modules once there may be any."""
        if self._met is None and may_have_untracked_arrays():
            with suppress(Exception):  # a run without these is judged with less certainty
                self.note_all(module_arrays())
        self._before.clear()
        self._gone.clear()
        self._counts = untracked_array_counts()

    @property
    def has_added(self) -> bool | None:
        """Whether the run has left more arrays than there were, as a rule; None where their number is unknown."""
        if self._gone:
            return None  # those that have gone hide as many
        return have_added_arrays(self._counts, untracked_array_counts())

    @property
    def let_go(self) -> int:
        """The bytes of older arrays that have gone since the run began, by their last reference and with no wider fixture."""
        return sum(self._gone.values())

    @property
    def credit(self) -> int:
        """What of `let_go` is a credit: what re-runs have added of it is none. A test must not pass for letting that go."""
        return sum(
            min(gone, max(self._standing[group] + gone - self._extra[group], 0)) for group, gone in self._gone.items()
        )

    def note_all(self, met: MetArrays, extra: int = 0) -> None:
        """Note all arrays that a walk over the heap has met, in place of those of the walk before.

        Re-runs have added `extra` bytes of those that are new.
        """
        self._met = met
        self._follow(met, extra)

    def note_setup(self, fixture: FixtureKey) -> None:
        """Note the arrays that a fixture's setup has made. The collector must see the setup's objects alone."""
        if may_have_untracked_arrays():
            with suppress(Exception):
                # Without modules: reading one that is imported lazily would import it. In no variable, which would hold them.
                met = arrays_in([one for one in get_objects() if type(one) is not ModuleType])
                self._of_fixtures[fixture] = met
                self._follow(met)

    def begin_apart(self) -> None:
        """Begin to leave out what is made and goes in the setup or teardown of a wider fixture, as the counters do."""
        self._before.append((self._gone.copy(), untracked_array_counts()))

    def end_apart(self) -> None:
        """Leave out what was made and has gone since it began."""
        if not self._before:
            return
        self._gone, then = self._before.pop()
        if not self._before:
            moved = zip(self._counts, then, untracked_array_counts(), strict=False)
            self._counts = [count + now - before for count, before, now in moved]

    def forget(self, fixture: FixtureKey) -> None:
        """Forget what a fixture's setup has made: it is torn down."""
        self._of_fixtures.pop(fixture, None)

    def note_collection(self, phase: str) -> None:
        """Note that a collection of the whole heap begins or ends: what it frees is counted apart."""
        self._collecting = phase == "start"

    def alive(self) -> dict[int, int]:
        """Return the bytes of the memory that is not known to be gone, by its key."""
        alive = {} if self._met is None else self._met.alive()
        for met in self._of_fixtures.values():
            alive |= met.alive()
        return alive

    def ranges(self) -> list[MemoryRange]:
        """Return where the memory of the larger arrays is that are alive."""
        reader = untracked_arrays()
        handles = (one for met in (self._met, *self._of_fixtures.values()) if met for one in met.handles.values())
        return [reader.memory(array) for handle in handles if (array := handle.array()) is not None]

    def _follow(self, met: MetArrays, extra: int = 0) -> None:
        group = len(self._standing) if extra else 0
        if extra:
            self._standing.append(0)
            self._extra.append(extra)
        for key, handle in met.handles.items():
            if key not in self._followed and (array := handle.array()) is not None:
                one = self._followed[key] = _Followed(array, self._goes)
                one.group, one.key, one.size = group, key, met.sizes[key]
                self._standing[group] += one.size
        array = None  # the frame would hold it

    def _goes(self, gone: _Followed) -> None:
        del self._followed[gone.key]
        self._standing[gone.group] -= gone.size
        if not self._collecting:
            self._gone[gone.group] += gone.size

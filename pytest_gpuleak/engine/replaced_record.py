"""Tell from the last suspects whether one that leaves as little, in the place of what they left, is run again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.engine.settle.attempts import MOST_TRY_EVERY, TRY_EVERY, Attempts, Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from typing import TypeAlias

    from pytest_gpuleak.adapters.protocol import StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading

    Left: TypeAlias = frozenset[tuple[Hashable, int]]

ENOUGH: Final = 2
"""Suspects that were run again and did not grow, after which the next one alike may be taken not to."""

SLOW_S: Final = 1.0
"""Seconds of a re-run from which one such suspect is enough."""

FREE_S: Final = 0.3
"""Seconds that such re-runs may take before one is left out, or `SHARE` of the session's time."""

SHARE: Final = 0.05

IN_A_ROW: Final = 6
"""Suspects in a row that did not grow, and what each left has gone in turn, after which arrays of other sizes are alike."""

COLLECTED_RERUN_S: Final = 0.05
"""Mean seconds of the re-runs from which a collection of the whole heap, which tells of all that wait, is worth its time."""

COLLECTIONS_IN_VAIN: Final = 2
"""Such collections in a row that freed nothing, after which they are rare."""

LARGER: Final = 2
"""How many times the bytes of those suspects make one worth a re-run all the same."""

LEAST_TOLERATED: Final = 2
"""Suspects whose arrays may wait once a collection has freed all that waited: twice as many with each further one."""

MOST_WAITING: Final = 64
"""Suspects whose arrays may still wait for a collection."""

MOST_KINDS: Final = 256
"""Different sets of arrays that are remembered: a suite without two tests alike is run again as before."""


class ReplacedRecord:
    """Remembers what the last suspects left, by weak handles and plain data.

    A fixture that puts a new loader into a dict of the session leaves a few arrays with each test, in the place of those
    of the test before. Where these have gone, and the tests before did not grow when they were run again, another re-run
    tells nothing new, and it may take as long as the test (10 s of opacus's).

    Parametrized tests may each leave arrays of other sizes, and what they replace may wait in a cycle for the next
    collection of the whole heap: Keras keeps the first batch of the model that was fitted last. There what the suspects
    left must have gone in the order of the tests. A collection tells of all that wait, for less than two re-runs. Where
    more wait than did before, one after the other may have leaked: the next one is run again.
    """

    def __init__(self) -> None:
        self._left: Left = frozenset()
        self._kinds: Left = frozenset()
        self._bytes = 0
        self._waiting: list[Sequence[StorageHandle]] = []
        self._confirmed: Counter[Left] = Counter()
        self._in_a_row = 0
        self._tolerated = 0  # suspects whose arrays may wait, as those of a row did before they went
        self._largest = 0
        self._reruns = 0
        self._tries = Backoff(TRY_EVERY, MOST_TRY_EVERY)
        self._vain_s = 0.0
        self._collections = Attempts(COLLECTIONS_IN_VAIN)

    def why_not(
        self,
        left: Iterable[ArrayReading],
        expected_s: float | None,
        elapsed_s: float,
        collect: Callable[[], object] = int,
    ) -> str:
        """Tell why a suspect is not run again; empty if it is. Each call is one suspect.

        Args:
            left: all that it has left.
            expected_s: seconds of the re-run; None: unknown.
            elapsed_s: seconds of the session so far.
            collect: collects the whole heap, which may free what earlier suspects left.
        """
        readings = list(left)
        self._left = _counted(one.likeness for one in readings)
        self._kinds = _counted((len(one.shape), one.dtype, one.device) for one in readings)
        self._bytes = sum(one.storage_bytes for one in readings)
        if expected_s is None or self._vain_s + expected_s <= max(FREE_S, SHARE * elapsed_s):
            self._follow(self._gone())
            return ""
        enough = 1 if expected_s >= SLOW_S else ENOUGH
        gone = self._gone()
        if self._would_tell(gone) and self._collections.is_due():
            collect()
            before, gone = gone, self._gone()
            self._collections.note(useful=gone != before)
            if gone != before and all(gone):  # each such proof makes the next collection rarer
                self._tolerated = min(max(LEAST_TOLERATED, 2 * self._tolerated), MOST_WAITING)
        self._follow(gone)
        in_a_row = self._are_row(self._in_a_row) and len(self._waiting) <= self._tolerated
        if not (self._are_alike(enough) or in_a_row) or self._tries.is_due():
            return ""
        return "the tests before it left arrays alike, which have gone, and did not grow when they were run again"

    def note(self, living: Sequence[StorageHandle], rerun_s: float, *, grew: bool) -> None:
        """Note what is alive of the suspect that was asked about last, and how it came out.

        Args:
            living: weak handles on it.
            rerun_s: seconds of its re-runs; 0 where it was not run again.
            grew: whether anything grew or failed.
        """
        if grew:
            self._begin_row()
            self._tries.begin_anew()
        if grew or len(self._confirmed) >= MOST_KINDS:
            self._confirmed.clear()
        self._waiting.append(living)
        if rerun_s and not grew:
            self._confirmed[self._left] += 1
            self._confirmed[self._kinds] += 1
            self._vain_s += rerun_s
            self._reruns += 1
            self._largest = max(self._largest, self._bytes)

    def _are_alike(self, enough: int) -> bool:
        return self._confirmed[self._left] >= enough and not self._waiting

    def _are_row(self, count: int) -> bool:
        """Tell whether so many are in a row, and one of them was alike but for the size: the others stand for it, too."""
        in_a_row = count >= IN_A_ROW and self._bytes <= LARGER * self._largest
        return in_a_row and self._confirmed[self._kinds] > 0

    def _gone(self) -> list[bool]:
        return [not any(handle.alive() for handle in handles) for handles in self._waiting]

    def _would_tell(self, gone: list[bool]) -> bool:
        """Tell whether a collection may show that the suspects which wait are a row, or that a row is not broken."""
        if self._vain_s < COLLECTED_RERUN_S * self._reruns:
            return False
        if self._in_a_row >= IN_A_ROW:
            return not _are_in_order(gone) or len(gone) - _count_to_last(gone) > self._tolerated
        return self._are_row(self._in_a_row + len(gone))

    def _follow(self, gone: list[bool]) -> None:
        """Count the suspects whose arrays have gone; where one's stay and those of a later one have gone, begin anew."""
        to_last = _count_to_last(gone)
        if _are_in_order(gone):
            self._in_a_row += to_last
            if to_last:
                # So many waited when the last suspect was asked about.
                self._tolerated = max(self._tolerated, len(gone) - 1)
        else:
            self._begin_row()
        del self._waiting[:to_last]
        if len(self._waiting) > MOST_WAITING:
            self._begin_row()
            del self._waiting[:-1]

    def _begin_row(self) -> None:
        self._in_a_row = self._largest = self._tolerated = 0


def _count_to_last(gone: list[bool]) -> int:
    return len(gone) - gone[::-1].index(True) if True in gone else 0


def _are_in_order(gone: list[bool]) -> bool:
    return all(gone[: _count_to_last(gone)])


def _counted(likenesses: Iterable[Hashable]) -> Left:
    return frozenset(Counter(likenesses).items())

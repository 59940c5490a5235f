"""Take settle steps that were put off until after a re-run, and tell garbage from what the re-run has replaced."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.engine.settle.steps import rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpuleak.adapters.protocol import SettleStep
    from pytest_gpuleak.engine.confirm.survivors import Leftover
    from pytest_gpuleak.model.readings import ArrayReading


class SettledLate(NamedTuple):
    """What the steps have freed."""

    garbage: dict[int, Leftover]
    """What was garbage when the first run ended, by id."""
    collected: set[int]
    """The ids of all that a collection has freed."""
    of_rerun: Counter[object]
    """How many more of each likeness a collection has freed of the re-run than were garbage of the first run.

    Where fewer, see `may_be_replaced`.
    """

    def may_be_replaced(self, new: Iterable[ArrayReading]) -> list[Leftover]:
        """Return what counts as garbage since something alike stays beside the `new`, which may have replaced it."""
        alike = {reading.likeness for reading in new}
        fewer = {likeness for likeness in alike if self.of_rerun[likeness] < 0}
        return [left for left in self.garbage.values() if left.reading.likeness in fewer]


def settle_late(steps: Iterable[SettleStep], left: dict[int, Leftover], living: Callable[[], set[int]]) -> SettledLate:
    """Take the steps while any of what each run `left` is `living`, and remove from `left` what they free."""
    freed: dict[int, Leftover] = {}
    collected: set[int] = set()
    for step in steps:
        before = living()
        if not before:
            break
        for _ in rounds(step, lambda: len(living())):
            pass
        gone = before - living()
        freed |= {identity: left.pop(identity) for identity in gone}
        if step.collects:
            collected |= gone
    alive = [left[identity] for identity in living()]
    garbage = _without_replaced({identity: one for identity, one in freed.items() if one.run == 0}, alive)
    of_rerun: Counter[object] = Counter(freed[i].reading.likeness for i in collected if freed[i].run)
    of_rerun.subtract(one.reading.likeness for one in garbage.values())
    return SettledLate(garbage, collected, of_rerun)


class Doubtful(NamedTuple):
    """What died during a re-run, as keys, and that the re-run may not have replaced: it may have been garbage.

    Taken for replaced, garbage that the re-run freed would hide a leak of the same test. A run from a heap that is collected
    tells.
    """

    counterparts: set[int]
    """A collection has freed more alike of the re-run than of the first run: as many of these were garbage."""
    unlike: set[int]
    """Nothing new is like it, where something new is like nothing that died."""


def find_doubtful(
    dead: Mapping[int, ArrayReading], new: Iterable[ArrayReading], of_rerun: Mapping[object, int]
) -> Doubtful:
    """Find what is doubtful of the first run's `dead`, beside the `new` arrays that a re-run left (see `SettledLate`)."""
    collected, unmatched = Counter(of_rerun), Counter(reading.likeness for reading in new)
    found = Doubtful(set(), set())
    for key, reading in dead.items():
        likeness = reading.likeness
        if collected[likeness] > 0:
            collected[likeness] -= 1
            found.counterparts.add(key)
        elif unmatched[likeness] > 0:
            unmatched[likeness] -= 1
        else:
            found.unlike.add(key)
    return found if unmatched.total() else Doubtful(found.counterparts, set())


def _without_replaced(freed: Mapping[int, Leftover], alive: Iterable[Leftover]) -> dict[int, Leftover]:
    """Leave out those of the first run's arrays that a re-run's replaced: no living array is like it.

    They wait in a cycle too if their holder is part of one (a trainer, which refers to its callbacks). Without them,
    the re-run's would seem to be more than the first run left: a leak.
    """
    unmatched: Counter[tuple[object, ...]] = Counter()
    for one in alive:
        unmatched[one.reading.likeness] += 1 if one.run else -1
    garbage: dict[int, Leftover] = {}
    for identity, one in freed.items():
        likeness = one.reading.likeness
        if unmatched[likeness] > 0:
            unmatched[likeness] -= 1
        else:
            garbage[identity] = one
    return garbage

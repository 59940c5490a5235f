"""Take settle steps that were put off until after a re-run, and tell garbage from what the re-run has replaced."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.settle.steps import rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpuleak.adapters.protocol import SettleStep
    from pytest_gpuleak.engine.confirm.survivors import Leftover


def settle_late(
    steps: Iterable[SettleStep], left: dict[int, Leftover], living: Callable[[], set[int]]
) -> tuple[dict[int, Leftover], set[int]]:
    """Take the steps while any of what each run `left` is `living`, and remove from `left` what they free.

    Returns what was garbage when the first run ended, and the ids of all that a collection has freed.
    """
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
    return _without_replaced({identity: one for identity, one in freed.items() if one.run == 0}, alive), collected


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

"""Tell what the test's runner alone holds, by counting references. Loaded with the first suspect."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.limits import MOST_ALONE
from pytest_gpuleak.explain.harness import held_by_harness

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuleak.engine.deaths import Left
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.runs import Runs
    from pytest_gpuleak.model.evidence import Keeper

    Keepers = Callable[[Sequence[object]], Mapping[int, Keeper] | None]
    """Tells which arrays the runner alone keeps; None: what holds them is too much to be looked at."""


def _ask(arrays: list[object], keepers_of: Keepers) -> dict[int, Keeper]:
    """Ask what keeps the arrays (emptied here), one by one where what holds them together is too much to be looked at."""
    together = keepers_of(arrays) if arrays else {}
    keepers = dict(together or {})
    if together is None and 1 < len(arrays) <= MOST_ALONE:
        while arrays:
            alone = [arrays.pop()]
            keepers.update(keepers_of(alone) or {})
            alone.clear()
    arrays.clear()
    return keepers


def find_kept_by_runner(runs: Runs, tracker: RunTracker, item: object) -> dict[int, Keeper]:
    """Return what only running frames, or pytest's `item` with the test's instance, keep, by the survivors' indices.

    What frames hold goes when they return, and what the item holds does not grow. pytest keeps the instance on which a test
    ran first, and so does a frame of pytest-flaky's, while a re-run has one of its own: what the first instance refers to
    lives on when the re-run has replaced it everywhere else. So after re-runs what the runs before the last left is asked for.
    """
    test_class = getattr(item, "cls", None)
    older = [left for left in runs.living() if left.run < max(1, runs.count - 1)]
    if not older or not runs.living(of_last=True) or (runs.count > 1 and test_class is None):
        return {}

    too_much: set[int] = set()

    def keepers_of(arrays: Sequence[object]) -> Mapping[int, Keeper] | None:
        finders, young_alone = tracker.frameworks.reference_finders(), tracker.detector.sees_only_young
        held = held_by_harness(arrays, item, test_class, finders, None if young_alone else too_much)
        return None if held is None else dict.fromkeys(held.arrays, held.by)

    # A class's fixture that the re-run has set up again has made older what the first run left.
    visible = runs.objects(older)
    complete = len(visible) == len({left.held.reading.identity for left in older})
    visible.clear()
    with contextlib.nullcontext() if complete else tracker.detector.whole_heap():
        arrays = runs.objects(older)
        keepers = _ask(arrays, keepers_of)
    sharing: dict[int, list[Left]] = defaultdict(list)
    for left in older:
        sharing[left.index].append(left)
    return {
        index: keepers[same[0].held.reading.identity]
        for index, same in sharing.items()
        if keepers.keys() >= {left.held.reading.identity for left in same}
    }

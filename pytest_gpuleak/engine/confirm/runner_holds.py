"""Find what the test's runner alone keeps of an earlier run: it does not grow beside the re-run's, which replaced it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.arrays import array_types, find_arrays
from pytest_gpuleak.heap.collector import get_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.confirm.left_arrays import LeftArrays
    from pytest_gpuleak.engine.confirm.survivors import Leftover
    from pytest_gpuleak.engine.detect.detector import Detector
    from pytest_gpuleak.model.evidence import Keeper

    Keepers = Callable[[Sequence[object]], Mapping[int, Keeper] | None]
    """Tells which arrays the runner alone keeps; None: what holds them is too much to be looked at."""


MOST_ALONE: Final = 32
"""Arrays that are asked for one by one, where what holds one of them was too much to be looked at."""


def find_kept_by_runner(
    left: LeftArrays,
    decided: frozenset[int],
    detector: Detector,
    frameworks: Sequence[ArrayFramework],
    born: set[int],
    keepers_of: Keepers,
) -> list[tuple[Leftover, Keeper]]:
    """Return what earlier runs left and the test's runner alone keeps, as far as `keepers_of` tells by whom.

    pytest keeps the instance on which a test ran first, and so does a frame of pytest-flaky's, while a re-run has one of
    its own. What the first instance refers to lives on, beside the re-run's array in the same place, which replaced it.
    `born` are the ids of what the earlier runs made, `decided` of arrays that the runner was known to hold alone: they may
    refer to the others by native code.
    """
    young, older = left.living_by_age()
    if not young or not older:
        return []
    arrays = _find_young(older, decided, detector, frameworks, born)
    together = keepers_of(arrays) if arrays else {}
    keepers = dict(together or {})
    if together is None and 1 < len(arrays) <= MOST_ALONE:
        while arrays:
            alone = [arrays.pop()]
            keepers.update(keepers_of(alone) or {})
            alone.clear()
    arrays.clear()
    sharing: dict[tuple[int, int], list[int]] = defaultdict(list)
    for identity in older:
        sharing[left.by_id[identity].run, left.by_id[identity].reading.storage].append(identity)
    kept = (identities for identities in sharing.values() if keepers.keys() >= set(identities))
    return [(left.by_id[identities[0]], keepers[identities[0]]) for identities in kept]


def _find_young(
    wanted: set[int], others: frozenset[int], detector: Detector, frameworks: Sequence[ArrayFramework], born: set[int]
) -> list[object]:
    found = find_arrays(wanted | others, get_objects(), array_types(frameworks))
    if not wanted <= set(map(id, found)) and detector.rejoin(born):
        found.clear()
        found = find_arrays(wanted | others, get_objects(), array_types(frameworks))
    return found

"""Match what a re-run left to what died in it: what replaces something adds nothing. Pure.

Dicts keyed by what must be equal find similar arrays, of which a test may leave 100,000, without comparing pairs.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.model.evidence import Survivor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.model.evidence import Evidence, Root

_DIGITS: Final = re.compile(r"\d+")


class Comparison(NamedTuple):
    """What the re-runs of a suspect added.

    Attributes:
        added: by re-run that decides, the indices of the survivors that replaced nothing. All of them, none empty: it grows.
        replaced_by: the index of the new survivor by that of the one that it replaced.
        garbage: indices of first survivors that a collection freed and that nothing replaced.
        doubtful: whether the last re-run added something that may have replaced what a collection has freed, or a smaller
            array: a re-run from a settled heap tells.
    """

    added: tuple[tuple[int, ...], ...]
    replaced_by: dict[int, int]
    garbage: frozenset[int]
    doubtful: bool

    @property
    def grows(self) -> bool:
        """Whether each re-run that decides has added something."""
        return bool(self.added) and all(self.added) and not self.doubtful


def compare(evidence: Evidence) -> Comparison:
    """Compare each re-run with the run before it.

    A re-run that leaves a doubt does not decide, and the next one begins from a settled heap and does. The holders in the
    evidence may choose which of several similar survivors is matched, never how many are.
    """
    survivors = evidence.survivors
    replaced_by: dict[int, int] = {}
    added: list[tuple[int, ...]] = []
    doubtful = False
    for run in range(1, len(evidence.alive)):
        before, after = evidence.alive[run - 1], evidence.alive[run]
        collected = evidence.collected.get(run, frozenset()) & before
        new = [index for index in sorted(after) if survivors[index].run == run]
        kept = before & evidence.kept.keys()
        staying = sorted((before & after) - kept)
        matched, left = _match(evidence, run, sorted(before - after - collected), new, staying)
        if kept:
            replaced = _replacements_of_kept(sorted(kept - replaced_by.keys()), left, survivors, staying)
            matched |= replaced
            left = sorted(set(left).difference(replaced.values()))
        by_chance = match_replacements(sorted(collected), left, survivors, staying)
        replaced_by.update(matched)
        replaced_by.update(by_chance)
        if run == evidence.traced:
            continue
        smaller = _smaller_gone(before - after - collected - matched.keys(), left, survivors)
        doubtful = (
            bool(left)
            and run not in evidence.exact
            and (bool(collected) or run in evidence.older_collected or smaller)
        )
        if not doubtful:
            added.append(tuple(left))
    freed = frozenset[int]().union(*evidence.collected.values()) if evidence.collected else frozenset()
    first = evidence.alive[0] if evidence.alive else frozenset()
    return Comparison(tuple(added), replaced_by, freed & first - replaced_by.keys(), doubtful)


def _match(
    evidence: Evidence, run: int, dead: Sequence[int], new: Sequence[int], staying: Sequence[int]
) -> tuple[dict[int, int], list[int]]:
    """Return the replacements of the `dead`, and which of the `new` survivors replace neither these nor older arrays."""
    matched = match_replacements(dead, new, evidence.survivors, staying)
    taken = set(matched.values())
    left = [index for index in new if index not in taken]
    older = evidence.older_gone.get(run, ())
    if left and older:
        pool = (*evidence.survivors, *(Survivor(-1, reading) for reading in older))
        indices = range(len(evidence.survivors), len(pool))
        taken = set(match_replacements(indices, left, pool, staying, any_size=True).values())
        left = [index for index in left if index not in taken]
    return matched, left


def match_replacements(
    dead: Sequence[int],
    new: Sequence[int],
    survivors: Sequence[Survivor],
    staying: Iterable[int],
    *,
    any_size: bool = False,
) -> dict[int, int]:
    """Match new survivors to the dead ones that they replace: indices of the new by the dead.

    In passes: same root and form, same form, same size, and at last a dead one on the same device that was larger, or of
    `any_size`. Of several new ones the place and then the root with the fewest that stayed come first: an overwritten slot
    keeps none, an appended list all. How many are matched does not depend on roots.
    """
    if not dead or not new:
        return {}
    stay = [survivors[index] for index in staying]
    per_place, per_root = Counter(map(place_of, stay)), Counter(one.root for one in stay)

    def fewest_first(index: int) -> tuple[int, int, int]:
        return per_place[place_of(survivors[index])], per_root[survivors[index].root], index

    order = sorted(new, key=fewest_first)
    matched: dict[int, int] = {}
    taken: set[int] = set()
    for key in (root_and_form, form_of, _size, *((_device,) if any_size else ())):
        waiting: dict[Any, deque[int]] = defaultdict(deque)
        for index in order:
            if index not in taken:
                waiting[key(survivors[index])].append(index)
        for index in dead:
            if index in matched or (key is root_and_form and survivors[index].holder is None):
                continue
            candidates = waiting.get(key(survivors[index]))
            if candidates:
                matched[index] = candidates.popleft()
                taken.add(matched[index])
    _match_larger([i for i in dead if i not in matched], [i for i in order if i not in taken], survivors, matched)
    return matched


def _match_larger(
    dead: Sequence[int], new: Sequence[int], survivors: Sequence[Survivor], matched: dict[int, int]
) -> None:
    """Match the largest new survivors first, each with the smallest dead one on its device that is no smaller."""
    by_device: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for index in dead:
        by_device[survivors[index].reading.device].append((survivors[index].reading.storage_bytes, index))
    for sizes in by_device.values():
        sizes.sort()
    for index in sorted(new, key=lambda one: -survivors[one].reading.storage_bytes):
        sizes = by_device.get(survivors[index].reading.device, [])
        at = bisect_left(sizes, (survivors[index].reading.storage_bytes, -1))
        if at < len(sizes):
            matched[sizes.pop(at)[1]] = index


def _smaller_gone(dead: Iterable[int], left: Sequence[int], survivors: Sequence[Survivor]) -> bool:
    """Tell whether something smaller died on a device where something was added: it may have been replaced."""
    devices = {survivors[index].reading.device for index in left}
    return any(survivors[index].reading.device in devices for index in dead)


def _replacements_of_kept(
    kept: Sequence[int], new: Sequence[int], survivors: Sequence[Survivor], staying: Sequence[int]
) -> dict[int, int]:
    """Match what the runner alone keeps, which is alive, with what has replaced it elsewhere.

    Where something alike stays, a new survivor is one more: in a list, or in a dict with a key for each run.
    """
    full = {place for index in staying for place in _places(survivors[index])}
    left = [index for index in new if full.isdisjoint(_places(survivors[index]))]
    return match_replacements(kept, left, survivors, staying)


@lru_cache(maxsize=1024)  # a test's survivors have few distinct roots
def stem_of(root: Root) -> Root:
    """Return the root without digits: objects made in each run (a module, a thread) are often numbered."""
    device, kind, name = root
    return device, kind, _DIGITS.sub("#", name)


def place_of(survivor: Survivor) -> Any:
    """Return the root and the path below it, without digits."""
    return stem_of(survivor.root), _DIGITS.sub("#", survivor.pattern)


def form_of(survivor: Survivor) -> Any:
    """Return what two arrays of the same form have in common."""
    reading = survivor.reading
    return reading.device, reading.shape, reading.dtype


def root_and_form(survivor: Survivor) -> Any:
    """Return the root and the form."""
    return survivor.root, form_of(survivor)


def _places(survivor: Survivor) -> tuple[Any, ...]:
    form = stem_of(survivor.root), form_of(survivor)
    return (place_of(survivor), form) if survivor.holder is not None and survivor.holder.named else (form,)


def _size(survivor: Survivor) -> Any:
    return survivor.reading.device, survivor.reading.storage_bytes


def _device(survivor: Survivor) -> Any:
    return survivor.reading.device

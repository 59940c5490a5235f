"""Match what a re-run left to what died in it: what replaces something adds nothing. Pure.

Dicts keyed by what must be equal find similar arrays, of which a test may leave 100,000, without comparing pairs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.engine.limits import LEAST_RISES
from pytest_gpuleak.model.evidence import Survivor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_gpuleak.model.evidence import Evidence, Root

_DIGITS: Final = re.compile(r"\d+")


class Comparison(NamedTuple):
    """What the re-runs of a suspect added.

    Attributes:
        added: by re-run that decides, the indices of the survivors that replaced nothing. All of them, none empty: it grows.
        replaced_by: the index of the new survivor by that of the one that it replaced.
        garbage: indices of first survivors that a collection freed and that nothing replaced.
        doubtful: whether the last re-run added something that may have replaced what a collection has freed, an array of
            another size, or in the first re-run an older one: another re-run, from a settled heap, tells. So does what
            replaced one that is smaller by as many bytes in each run so far.
        extra: indices of what re-runs left where nothing has gone: without them the session would not have it.
        uncollected: indices of what a traced run has replaced, though nothing has collected it since.
        excess: of those added, what replaced a smaller one, by as many bytes in each run: these bytes, by index.
        fresh: of the run that has set up wider fixtures again, indices of what replaced nothing and is like nothing that the
            first run has left: it was there after the first run, too, before their teardown.
    """

    added: tuple[tuple[int, ...], ...]
    replaced_by: dict[int, int]
    garbage: frozenset[int]
    doubtful: bool
    extra: frozenset[int]
    uncollected: frozenset[int]
    excess: dict[int, int]
    fresh: tuple[int, ...]

    @property
    def grows(self) -> bool:
        """Whether each re-run that decides has added something."""
        return bool(self.added) and all(self.added) and not self.doubtful


def compare(evidence: Evidence) -> Comparison:
    """Compare each re-run with the run before it.

    A re-run that leaves a doubt does not decide, and the next one begins from a settled heap and does. The holders in the
    evidence may choose which of several similar survivors is matched, never how many are.
    """
    replaced_by: dict[int, int] = {}
    added: list[tuple[int, ...]] = []
    extra: set[int] = set()
    excess: dict[int, int] = {}
    uncollected: set[int] = set()
    fresh: list[int] = []
    doubtful = False
    for run in range(1, len(evidence.alive)):
        left, doubt = _compare_run(evidence, run, replaced_by, extra, excess)
        if run == evidence.traced:
            grown = added[-1] if added and all(added) and not doubtful else ()
            left = _left_of(left, match_replacements(grown, left, evidence.survivors, ()))
            # The next test was excused for garbage of this run (tests/acceptance/confirm/test_replaced_in_cycles.py).
            staying = (evidence.alive[run - 1] & evidence.alive[run]) - evidence.kept.keys()
            replaced = match_replacements(sorted(staying, reverse=True), left, evidence.survivors, ())
            uncollected.update(replaced)
            extra.difference_update(replaced.values())
            continue
        if evidence.rebuilds and run == 1:
            before = sorted(evidence.alive[0] & evidence.alive[1])
            fresh = _left_of(left, match_replacements(before, left, evidence.survivors, ()))
            extra.difference_update(fresh)
            continue
        doubtful = doubt
        if not doubtful:
            added.append(tuple(left))
    freed = frozenset[int]().union(*evidence.collected.values()) if evidence.collected else frozenset[int]()
    first = evidence.alive[0] if evidence.alive else frozenset[int]()
    return Comparison(
        tuple(added),
        replaced_by,
        garbage=freed & first - replaced_by.keys(),
        doubtful=doubtful,
        extra=frozenset(extra - uncollected),
        uncollected=frozenset(uncollected),
        excess=excess,
        fresh=tuple(fresh),
    )


def _compare_run(
    evidence: Evidence, run: int, replaced_by: dict[int, int], extra: set[int], excess: dict[int, int]
) -> tuple[list[int], bool]:
    """Return what a re-run added, and whether that is in doubt; note in the last three what it replaced."""
    survivors, older = evidence.survivors, evidence.older_gone.get(run, ())
    before, after = evidence.alive[run - 1], evidence.alive[run]
    collected = evidence.collected.get(run, frozenset()) & before
    pool = (*survivors, *(Survivor(-1, reading) for reading in older))
    new = [index for index in sorted(after) if survivors[index].run == run]
    kept = before & after & evidence.kept.keys()
    staying = sorted((before & after) - kept)
    let_go = (before - after - collected) | (kept - evidence.kept_before - replaced_by.keys())
    dead = [*sorted(let_go), *range(len(survivors), len(pool))]
    matched = match_replacements(dead, new, pool, staying)
    left = _left_of(new, matched)
    smallest_first = partial(sorted, key=lambda index: pool[index].reading.storage_bytes)
    other_size = match_any(smallest_first(set(dead) - matched.keys()), smallest_first(left), pool)
    maybe = match_replacements(sorted(collected), left, survivors, staying)
    replaced = other_size | maybe | matched
    replaced_by.update({one: by for one, by in replaced.items() if one < len(survivors)})
    extra.update(set(new) - {by for one, by in replaced.items() if one not in after and one not in extra})
    # A full buffer drops an older array in each run, a `setUpClass` that is run again those of the class's tests but once.
    of_older = run == 1 + evidence.rebuilds and any(one >= len(survivors) for one in replaced)
    if run in evidence.exact:
        rises = _rises(other_size, replaced_by, evidence)
        excess.update((by, more) for by, (count, more) in rises.items() if count >= LEAST_RISES)
        left = _left_of(left, {one: by for one, by in other_size.items() if by not in excess})
        may_rise = not left and any(count >= run - evidence.rebuilds for count, _ in rises.values())
        return left, of_older or may_rise or (bool(left) and run in evidence.older_doubtful)
    return left, of_older or (bool(left) and bool(collected or other_size or run in evidence.older_doubtful))


def _rises(other_size: dict[int, int], replaced_by: dict[int, int], evidence: Evidence) -> dict[int, tuple[int, int]]:
    """Return, by the index of what is larger than what it replaced, how often in a row it was so, by as many bytes, and these."""
    survivors = evidence.survivors
    before = {by: one for one, by in replaced_by.items()} if other_size else {}
    found: dict[int, tuple[int, int]] = {}

    def more(by: int) -> int:
        return survivors[by].reading.storage_bytes - survivors[before[by]].reading.storage_bytes

    for one, by in other_size.items():
        if one < len(survivors) and more(by) > 0:
            count, last = 1, one
            while last in before and more(last) == more(by):
                count, last = count + 1, before[last]
            found[by] = count, more(by)
    return found


def _left_of(new: Iterable[int], matched: dict[int, int]) -> list[int]:
    taken = set(matched.values())
    return [index for index in new if index not in taken]


def match_replacements(
    dead: Sequence[int], new: Sequence[int], survivors: Sequence[Survivor], staying: Iterable[int]
) -> dict[int, int]:
    """Match new survivors to the dead ones that they replace: indices of the new by the dead.

    In passes: same root and form, same form, same size on the same device. Of several new ones the place and then the root
    with the fewest that stayed come first: an overwritten slot keeps none, an appended list all. How many are matched does
    not depend on roots.
    """
    if not dead or not new:
        return {}
    stay = [survivors[index] for index in staying]
    per_place, per_root = Counter(map(place_of, stay)), Counter(one.root for one in stay)

    def fewest_first(index: int) -> tuple[int, int, int]:
        return per_place[place_of(survivors[index])], per_root[survivors[index].root], index

    order = sorted(new, key=fewest_first)
    matched: dict[int, int] = {}
    for key in (root_and_form, form_of, _size):
        named = [one for one in dead if key is not root_and_form or survivors[one].holder is not None]
        _match_by(key, named, order, survivors, matched)
    return matched


def match_any(dead: Sequence[int], new: Sequence[int], survivors: Sequence[Survivor]) -> dict[int, int]:
    """Match new survivors to dead ones on the same device, whatever their sizes: a slot may take data of another size."""
    matched: dict[int, int] = {}
    _match_by(device_of, dead, new, survivors, matched)
    return matched


def _match_by(
    key: Callable[[Survivor], Any],
    dead: Sequence[int],
    new: Sequence[int],
    survivors: Sequence[Survivor],
    matched: dict[int, int],
) -> None:
    taken = set(matched.values())
    waiting: dict[Any, deque[int]] = defaultdict(deque)
    for index in new:
        if index not in taken:
            waiting[key(survivors[index])].append(index)
    for index in dead:
        candidates = None if index in matched else waiting.get(key(survivors[index]))
        if candidates:
            matched[index] = candidates.popleft()


@lru_cache(maxsize=1024)  # a test's survivors have few distinct roots
def stem_of(root: Root) -> Root:
    """Return the root without digits: objects made in each run (a module, a thread) are often numbered."""
    device, kind, name = root
    return device, kind, without_digits(name)


def without_digits(text: str) -> str:
    """Return a name or path without what may number it."""
    return _DIGITS.sub("#", text)


def place_of(survivor: Survivor) -> Any:
    """Return the root and the path below it, without digits."""
    return stem_of(survivor.root), without_digits(survivor.pattern)


def form_of(survivor: Survivor) -> Any:
    """Return what two arrays of the same form have in common."""
    reading = survivor.reading
    return reading.device, reading.shape, reading.dtype


def root_and_form(survivor: Survivor) -> Any:
    """Return the root and the form."""
    return survivor.root, form_of(survivor)


def _size(survivor: Survivor) -> Any:
    return survivor.reading.device, survivor.reading.storage_bytes


def device_of(survivor: Survivor) -> Any:
    """Return the device."""
    return survivor.reading.device

"""Compare the runs of one suspect to find what grows. Pure.

Dicts keyed by what must be equal find similar survivors, of which a test may leave 100,000, without comparing pairs.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_gpuleak.model.evidence import Evidence, Root, Survivor
    from pytest_gpuleak.model.findings import FindingKind

    Key = Callable[[Survivor], Any]


_DIGITS = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class Group:
    """Survivors, at least one, of a kind under one root: each re-run adds `bytes_per_run`, the first one `added`."""

    kind: FindingKind
    members: tuple[Survivor, ...]
    bytes_per_run: int = 0
    added: tuple[Survivor, ...] = ()

    @property
    def device(self) -> str:
        """Return the device that the members are on."""
        return self.members[0].reading.device

    @property
    def size(self) -> int:
        """Return the bytes that the members add up to."""
        return sum(member.size for member in self.members)


def group_by_root(kind: FindingKind, members: Iterable[Survivor]) -> list[Group]:
    """Return one group for each root."""
    return [Group(kind, tuple(group)) for group in _by_root(members, lambda root: root).values()]


def compare_runs(evidence: Evidence) -> list[Group]:
    """Find roots that grow: under them, every re-run left something that did not replace something dead."""
    survivors = evidence.survivors
    first = sorted(evidence.alive[0])
    replaced_by: dict[int, int] = {}
    added: list[list[Survivor]] = []  # one list per re-run
    for run in range(1, len(evidence.alive)):
        before, after = evidence.alive[run - 1], evidence.alive[run]
        new = [index for index in sorted(after) if survivors[index].run == run]
        kept = before & evidence.kept.keys()
        staying = sorted((before & after) - kept)
        replaced = match_replacements(sorted(before - after), new, survivors, staying)
        if kept:
            left = sorted(set(new).difference(replaced.values()))
            replaced |= _replacements_of_kept(sorted(kept - replaced_by.keys()), left, survivors, staying)
        replaced_by.update(replaced)
        taken = set(replaced.values())
        unmatched = [survivors[index] for index in new if index not in taken]
        added.append(name_by_what_stays(unmatched, [survivors[index] for index in staying]))
    name = _naming([survivors[index] for index in first], *added)
    additions = [_by_root(survivors_of_run, name) for survivors_of_run in added]
    growing_roots = set(additions[0]).intersection(*additions[1:])

    grows_there = _growing_places(additions[0], growing_roots, [survivors[index] for index in first], name)
    grown: dict[Root, list[Survivor]] = {root: [] for root in growing_roots}
    unchanged: list[Survivor] = []
    released: list[Survivor] = []
    for index in first:
        survivor = survivors[index]
        last = index
        while last in replaced_by:
            last = replaced_by[last]
        if last != index:
            # A replaced survivor takes holder and line from its replacement.
            survivor = survivors[last]._replace(
                run=0, reading=survivor.reading, owned=survivor.owned or survivors[last].owned
            )
        root = name(survivor.root)
        if root in grown and grows_there(survivor):
            grown[root].append(survivor)
        elif last == index and evidence.kept.get(index) == "frames":
            continue
        elif last == index and index not in evidence.alive[-1]:
            released.append(survivor)  # it died during a re-run without a replacement
        else:
            unchanged.append(survivor)
    groups = []
    for root, members in grown.items():
        per_run = round(sum(survivor.size for by_root in additions for survivor in by_root[root]) / len(additions))
        # Found under this root in the re-runs only: the first search took another path of equal length.
        shown = members or [survivor._replace(run=0) for survivor in additions[0][root]]
        lines = (survivor for by_root in additions for survivor in by_root[root])
        groups.append(Group("growing", tuple(_with_lines(shown, lines)), per_run, tuple(additions[0][root])))
    return [*groups, *group_by_root("retained", unchanged), *group_by_root("unconfirmed", released)]


def _naming(*runs: Sequence[Survivor]) -> Callable[[Root], Root]:
    """Return what names a root the same in each run: without digits only where not each run has it.

    Two lists may differ by a number in their names alone, and both may grow.
    """
    met = Counter(root for run in runs for root in {survivor.root for survivor in run})

    def name(root: Root) -> Root:
        return root if met[root] == len(runs) else _stem(root)

    return name


def _by_root(survivors: Iterable[Survivor], name: Callable[[Root], Root]) -> dict[Root, list[Survivor]]:
    groups: dict[Root, list[Survivor]] = defaultdict(list)
    for survivor in survivors:
        groups[name(survivor.root)].append(survivor)
    return groups


@functools.lru_cache(maxsize=1024)  # a test's survivors have few distinct roots
def _stem(root: Root) -> Root:
    """Return the root without digits: objects made in each run (a module, a thread) are often numbered."""
    device, kind, name = root
    return device, kind, _DIGITS.sub("#", name)


def match_replacements(
    dead: Sequence[int], new: Sequence[int], survivors: Sequence[Survivor], staying: Iterable[int]
) -> dict[int, int]:
    """Match new survivors to the dead survivors that they replace, which adds nothing: indices of the new by the dead.

    In four passes: same root and form, same form, same root, same device (a cache's place may take data of another
    size). Of several the place and then the root with the fewest that stayed: an overwritten slot keeps none, an appended
    list all. An optimizer that keeps more than a list does not make the model's overwritten attribute grow.
    """
    stay = [survivors[index] for index in staying]
    per_place, per_root = Counter(map(_place, stay)), Counter(map(_root, stay))

    def fewest_first(index: int) -> tuple[int, int, int]:
        return per_place[_place(survivors[index])], per_root[survivors[index].root], index

    order = sorted(new, key=fewest_first)
    matched: dict[int, int] = {}
    taken: set[int] = set()
    for key in (_root_and_form, _form, _root, _device):
        waiting: dict[Any, deque[int]] = defaultdict(deque)
        for index in order:
            if index not in taken:
                waiting[key(survivors[index])].append(index)
        for index in dead:
            if index in matched or (key in (_root_and_form, _root) and survivors[index].holder is None):
                continue
            candidates = waiting.get(key(survivors[index]))
            if candidates:
                matched[index] = candidates.popleft()
                taken.add(matched[index])
    return matched


def _replacements_of_kept(
    kept: Sequence[int], new: Sequence[int], survivors: Sequence[Survivor], staying: Sequence[int]
) -> dict[int, int]:
    """Match what the runner alone keeps, which is alive, with what has replaced it elsewhere.

    Where something alike stays, a new survivor is one more: in a list, or in a dict with a key for each run.
    """
    full = {place for index in staying for place in _places(survivors[index])}
    left = [index for index in new if full.isdisjoint(_places(survivors[index]))]
    return match_replacements(kept, left, survivors, staying)


def name_by_what_stays(added: Sequence[Survivor], staying: Sequence[Survivor]) -> list[Survivor]:
    """Give what a re-run `added` the holder of a similar survivor of an earlier run that is still alive (`staying`).

    A fixture that refers to its latest user only (`datamodule.trainer`) is nearest, but does not keep earlier arrays:
    nothing similar stays under it, or less than was added, and elsewhere than where it has the latest.
    """
    free: dict[Any, deque[Survivor]] = defaultdict(deque)
    under_root, adding = Counter(map(_root_and_form, staying)), Counter(map(_root_and_form, added))
    more_than_stays = any(count > under_root[key] > 0 for key, count in adding.items())
    full = set(map(_place_and_form, staying)) if more_than_stays else set()
    same = under_root.copy()
    for survivor in staying:
        if survivor.holder is not None and survivor.holder.kind != "unknown":
            free[_form(survivor)].append(survivor)
    spoken_for: Counter[Any] = Counter()
    for survivor in added:
        key = _root_and_form(survivor)
        if same[key] > 0:
            same[key] -= 1
            spoken_for[key] += 1
    named = []
    for survivor in added:
        candidates = free.get(_form(survivor))
        key = _root_and_form(survivor)
        stays, more = under_root[key], adding[key] > under_root[key]
        if candidates and (not stays or (more and _place_and_form(survivor) not in full)):
            while candidates and spoken_for[_root_and_form(candidates[0])] > 0:
                spoken_for[_root_and_form(candidates.popleft())] -= 1
            if candidates:
                like = candidates.popleft()
                adding[key] -= 1
                survivor = survivor._replace(  # noqa: PLW2901 - the same survivor, with its holder
                    holder=like.holder, pattern=like.pattern, others=like.others
                )
        named.append(survivor)
    return named


def _place(survivor: Survivor) -> Any:
    return _stem(survivor.root), _DIGITS.sub("#", survivor.pattern)


def _place_and_form(survivor: Survivor) -> Any:
    return _place(survivor), _form(survivor)


def _places(survivor: Survivor) -> tuple[Any, Any]:
    return _place(survivor), (_stem(survivor.root), _form(survivor))


def _device(survivor: Survivor) -> Any:
    return survivor.reading.device


def _form(survivor: Survivor) -> Any:
    reading = survivor.reading
    return reading.device, reading.shape, reading.dtype


def _root(survivor: Survivor) -> Any:
    return survivor.root


def _root_and_form(survivor: Survivor) -> Any:
    return survivor.root, _form(survivor)


def _growing_places(
    additions: dict[Root, list[Survivor]],
    growing: Iterable[Root],
    first: Iterable[Survivor],
    name: Callable[[Root], Root],
) -> Callable[[Survivor], bool]:
    """Return what tells whether a first survivor grows. A growing root may also hold a slot that is filled once."""
    filled = {survivor.pattern for survivor in first}
    places = {root: {survivor.pattern for survivor in additions[root]} for root in growing}
    exact = {root for root, patterns in places.items() if patterns <= filled}

    def grows(survivor: Survivor) -> bool:
        if survivor.holder is not None and survivor.holder.kind in ("native", "unknown"):
            return True  # no place: which of several paths is shown differs from run to run
        root = name(survivor.root)
        return root not in exact or survivor.pattern in places[root]

    return grows


def _with_lines(members: Iterable[Survivor], additions: Iterable[Survivor]) -> list[Survivor]:
    """Give the first run's survivors the creating lines of similar survivors of a re-run, which was traced."""
    keys: tuple[Key, ...] = (
        lambda survivor: (survivor.pattern, _form(survivor)),
        lambda survivor: survivor.pattern,
        _form,
        _device,
    )
    lines: list[dict[Any, Survivor]] = [{} for _ in keys]
    for addition in additions:
        if addition.created is not None:
            for key, known in zip(keys, lines, strict=True):
                known.setdefault(key(addition), addition)
    result = []
    for member in members:
        if member.created is None:
            like = next(
                (known[key(member)] for key, known in zip(keys, lines, strict=True) if key(member) in known), None
            )
            if like is not None:
                member = member._replace(created=like.created)  # noqa: PLW2901 - the same, with its line
        result.append(member)
    return result

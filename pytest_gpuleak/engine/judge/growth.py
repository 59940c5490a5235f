"""Group what the runs of one suspect left by the roots that hold it, and find the references that grow, for the text. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.engine.judge.replacements import compare, device_of, form_of, place_of, root_and_form, stem_of
from pytest_gpuleak.model.findings import FREED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuleak.engine.judge.replacements import Comparison
    from pytest_gpuleak.model.evidence import Evidence, Root, Survivor
    from pytest_gpuleak.model.findings import FindingKind, Holder, PathStep
    from pytest_gpuleak.model.source_files import Origin

    Key = Callable[[Survivor], Any]

_ATTRIBUTE: Final = re.compile(r"\.[^\W\d]\w*")


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


def group_only_run(evidence: Evidence, *, strict: bool) -> list[Group]:
    """Group what the only run left. What pytest's item alone keeps does not grow, unless the first run decides (`strict`).

    Nor does what the setup of the next run lets go.
    """
    kept: list[Survivor] = []
    others: list[Survivor] = []
    for index in sorted(evidence.alive[0]):
        keeper = evidence.kept.get(index)
        if keeper != "frames":  # what these hold goes with them
            (kept if keeper == "item" and not strict else others).append(evidence.survivors[index])
    return [
        *group_by_root("retained", kept),
        *group_by_root("retained" if evidence.freed_by_setup else "unconfirmed", others),
    ]


def compare_runs(evidence: Evidence) -> list[Group]:
    """Group what the runs left by root: what grows, what stays or is replaced, and what a re-run let go.

    Whether anything grows does not depend on the roots: see `replacements.compare`.
    """
    comparison = compare(evidence)
    survivors, replaced_by = evidence.survivors, comparison.replaced_by
    added: list[list[Survivor]] = []
    if comparison.grows:
        left_out = {*comparison.added[-1], *evidence.kept}
        staying = [survivors[index] for index in sorted(evidence.last) if index not in left_out]
        more = [[_with_excess(i, survivors, comparison) for i in of_run] for of_run in comparison.added]
        added = [name_by_what_stays(of_run, staying) for of_run in more]
    traced = [one for one in survivors if one.run == evidence.traced]
    first = sorted(evidence.alive[0].union(comparison.fresh) - comparison.garbage)
    name = _naming([survivors[index] for index in first], *added)
    additions = [_by_root(survivors_of_run, name) for survivors_of_run in added]
    growing_roots = (set(additions[0]).intersection(*additions[1:]) or set(additions[-1])) if additions else set()
    grows_there = _growing_places(additions, growing_roots, [survivors[index] for index in first], name)
    grown: dict[Root, list[Survivor]] = {root: [] for root in growing_roots}
    unchanged: list[Survivor] = []
    for index in first:
        last, survivor = _named_by_latest(index, survivors, replaced_by)
        root = name(survivor.root)
        # What the runner alone keeps of the first run is not what grows, though both may wait for their holders.
        if root in grown and index not in evidence.kept and grows_there(survivor):
            grown[root].append(survivor)
        elif last != index or evidence.kept.get(index) != "frames":
            unchanged.append(survivor)  # also what a re-run let go without a replacement
    groups = []
    for root, members in grown.items():
        of_root = [by_root.get(root, []) for by_root in additions]
        per_run = round(sum(survivor.size for of_run in of_root for survivor in of_run) / len(of_root))
        # Found under this root in the re-runs only: the first search took another path of equal length.
        shown = members or [survivor._replace(run=0) for survivor in of_root[-1]]
        lines = (*(one for of_run in of_root for one in of_run if one.created is not None), *traced)
        groups.append(Group("growing", tuple(_with_lines(shown, lines)), per_run, tuple(of_root[-1])))
    unchanged = _with_lines(unchanged, traced, by_place_alone=True)
    left = [one for one in unchanged if one.run == 0]
    gone = [one for one in unchanged if one.run > 0]  # see `Comparison.fresh`
    return [*groups, *group_by_root("retained", left), *group_by_root("retained", gone)]


def _named_by_latest(index: int, survivors: Sequence[Survivor], replaced_by: Mapping[int, int]) -> tuple[int, Survivor]:
    """Return the index of what replaced a survivor last, and the survivor with the holder and the line of that, if it has any."""
    survivor, last = survivors[index], index
    while last in replaced_by:
        last = replaced_by[last]
        by = survivors[last]
        if survivor.holder is None or (by.holder is not None and by.holder != FREED):
            owned = survivor.owned and by.owned  # of an alias that is gone nothing is known
            survivor = by._replace(run=survivors[index].run, reading=survivor.reading, owned=owned)
    return last, survivor


def _with_excess(index: int, survivors: Sequence[Survivor], comparison: Comparison) -> Survivor:
    """Return a survivor that was added; one that replaced a smaller one has only the bytes that it has more."""
    excess = comparison.excess.get(index)
    if excess is None:
        return survivors[index]
    _, survivor = _named_by_latest(index, survivors, comparison.replaced_by)
    return survivor._replace(reading=survivor.reading._replace(bytes=excess, storage_bytes=excess))


def _naming(*runs: Sequence[Survivor]) -> Callable[[Root], Root]:
    """Return what names a root the same in each run: without digits only where not each run has it.

    Two lists may differ by a number in their names alone, and both may grow.
    """
    met = Counter(root for run in runs for root in {survivor.root for survivor in run})

    def name(root: Root) -> Root:
        return root if met[root] == len(runs) else stem_of(root)

    return name


def _by_root(survivors: Iterable[Survivor], name: Callable[[Root], Root]) -> dict[Root, list[Survivor]]:
    groups: dict[Root, list[Survivor]] = defaultdict(list)
    for survivor in survivors:
        groups[name(survivor.root)].append(survivor)
    return groups


def name_by_what_stays(added: Sequence[Survivor], staying: Sequence[Survivor]) -> list[Survivor]:
    """Give what a re-run `added` the holder of a similar survivor of an earlier run that is still alive (`staying`).

    A fixture that refers to its latest user only (`datamodule.trainer`) is nearest, but does not keep earlier arrays:
    nothing similar stays under it, or less than was added, and elsewhere than where it has the latest.
    """
    free: dict[Any, deque[Survivor]] = defaultdict(deque)
    under_root, adding = Counter(map(root_and_form, staying)), Counter(map(root_and_form, added))
    more_than_stays = any(count > under_root[key] > 0 for key, count in adding.items())
    full = set(map(_place_and_form, staying)) if more_than_stays else set()
    same = under_root.copy()
    for survivor in staying:
        if survivor.holder is not None and survivor.holder.kind != "unknown":
            free[form_of(survivor)].append(survivor)
    spoken_for: Counter[Any] = Counter()
    for survivor in added:
        key = root_and_form(survivor)
        if same[key] > 0:
            same[key] -= 1
            spoken_for[key] += 1
    named = []
    for survivor in added:
        candidates = free.get(form_of(survivor))
        key = root_and_form(survivor)
        stays, more = under_root[key], adding[key] > under_root[key]
        if candidates and (not stays or (more and _place_and_form(survivor) not in full)):
            while candidates and spoken_for[root_and_form(candidates[0])] > 0:
                spoken_for[root_and_form(candidates.popleft())] -= 1
            if candidates:
                like = candidates.popleft()
                adding[key] -= 1
                survivor = survivor._replace(  # noqa: PLW2901 - the same survivor, with its holder
                    holder=like.holder, pattern=like.pattern, others=like.others
                )
        named.append(survivor)
    return named


def _place_and_form(survivor: Survivor) -> Any:
    return place_of(survivor), form_of(survivor)


def _pattern_and_form(survivor: Survivor) -> Any:
    return survivor.pattern, form_of(survivor)


def _growing_places(
    additions: Sequence[dict[Root, list[Survivor]]],
    growing: Iterable[Root],
    first: Iterable[Survivor],
    name: Callable[[Root], Root],
) -> Callable[[Survivor], bool]:
    """Return what tells whether a first survivor grows. A growing root may also hold a slot that is filled once."""
    filled = {survivor.pattern for survivor in first}
    places = {root: {survivor.pattern for survivor in additions[-1][root]} for root in growing}
    exact = {root for root, patterns in places.items() if patterns <= filled}

    def grows(survivor: Survivor) -> bool:
        if survivor.holder is not None and not survivor.holder.named:
            return True  # no place: which of several paths is shown differs from run to run
        root = name(survivor.root)
        return root not in exact or survivor.pattern in places[root]

    return grows


def _with_lines(
    members: Iterable[Survivor], additions: Iterable[Survivor], *, by_place_alone: bool = False
) -> list[Survivor]:
    """Give the first run's survivors the creating lines of similar survivors of a run that was traced (`additions`).

    One that is less similar gives its line only if all that are as similar have the same line: of several made by other
    lines, or where no line was seen, none is known to be the one. With `by_place_alone`, of those in the same place: what
    does not grow may have been made by the first run alone.
    """
    less_similar: tuple[Key, ...] = (lambda survivor: survivor.pattern, form_of, device_of)
    keys = (_pattern_and_form, *(() if by_place_alone else less_similar))
    lines: list[dict[Any, Origin | None]] = [{} for _ in keys]
    for addition in additions:
        if addition.pattern or not by_place_alone:
            for key, known in zip(keys, lines, strict=True):
                line = known.setdefault(key(addition), addition.created)
                if line != addition.created:
                    known[key(addition)] = (line or addition.created) if key is _pattern_and_form else None
    result = []
    for member in members:
        if member.created is None:
            found = (known.get(key(member)) for key, known in zip(keys, lines, strict=True))
            member = member._replace(created=next(filter(None, found), None))  # noqa: PLW2901 - the same, with its line
        result.append(member)
    return result


def growing_reference(shown: Holder, first: Iterable[Holder], added: Iterable[Holder]) -> int | None:
    """Return the index in ``shown.path`` of the reference that each run adds; None where the paths do not tell.

    `shown` and `first` are holders of the first run, `added` those of the first re-run. What that added has a reference
    that no first path has: ``STATE['log'][1]`` beside ``STATE['log'][0]``. The nearest one to the root counts, since a
    new object brings the references below it, and an item of a container before an attribute, by which a chain of
    objects grows: ``LAST.value`` and, behind it, ``LAST.previous.value``.
    """
    known: dict[
        tuple[int, PathStep], int
    ] = {}  # a number for each way that begins a path, by the way before it and a step
    for holder in first:
        way = 0
        for step in holder.path:
            way = known.setdefault((way, step), len(known) + 1)
    items: set[int] = set()
    attributes: set[int] = set()
    for holder in added:
        way = 0
        for index, (step, beside) in enumerate(zip(shown.path, holder.path, strict=False)):
            if (way, beside) not in known:
                if holder.root == shown.root and step.type == beside.type:
                    if step.edge.startswith("[") and beside.edge.startswith("["):
                        items.add(index)
                    elif _ATTRIBUTE.fullmatch(step.edge) and _ATTRIBUTE.fullmatch(beside.edge):
                        attributes.add(index)
                break
            if step != beside:
                break
            way = known[way, beside]
    return min(items or attributes, default=None)

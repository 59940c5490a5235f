"""Explain who keeps objects alive, and who else would.

Of very many (a replay buffer of 50,000 tensors), a sample is explained, and what hangs on its roots. Targets that a walk
down from the roots does not meet give the next sample (docs/developing/performance.md).
"""

from __future__ import annotations

import dataclasses
from collections import deque
from gc import get_referents
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.explain.further_holders import behind_rings, find_further_holders
from pytest_gpuleak.explain.rootless import TIMEOUT_ROOT
from pytest_gpuleak.explain.roots.roots import EDITABLE
from pytest_gpuleak.explain.search import OTHERS_STEPS, SEARCH_STEPS, Explanation, Question, Search
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import PausedCollector
from pytest_gpuleak.heap.referrers import reaches_everything, untouchable_modules
from pytest_gpuleak.model.findings import Holder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpuleak.adapters.reference_protocol import ReferenceFinder
    from pytest_gpuleak.explain.reference_graph import Cut
    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.explain.search import Remember


def explain(  # noqa: PLR0913 - what may be told of a search, each by its name
    targets: Sequence[object],
    *,
    ignore: Collection[int] = (),
    budget: Budget | None = None,
    remember: Remember | None = None,
    known: Collection[Cut] = (),
    frameworks: Sequence[ReferenceFinder] | None = None,
    groups: Mapping[int, int] = MappingProxyType({}),
) -> list[Explanation]:
    """Find out who holds each of `targets`: one explanation each, in their order.

    The whole heap must be visible to the collector: call `gc.unfreeze` before. Automatic collection is off during the
    search, and nothing that it read is kept.

    Args:
        targets: live objects; the sequence itself never counts as a holder.
        ignore: ids of the caller's containers and frames that refer to the targets and do not count either.
        budget: where the search stops, None: after `SEARCH_STEPS`. Naming the answers takes up to `WRITING_STEPS` more.
        remember: called with each root and its object. It must not keep them.
        known: references that do not count.
        frameworks: tell what their native code holds; None: the plugin's own.
        groups: by a target's id the group, such as a test's, of which one target gets further holders for each root.
    """
    with PausedCollector():
        budget = Budget(SEARCH_STEPS) if budget is None else budget
        search = Search(Question(targets, budget, ignore, cuts=known, frameworks=frameworks))
        search.run()
        cuts = set(known)
        others = find_further_holders(search, targets, cuts, groups)
        found = search.explanations(remember, others, groups)
        return behind_rings(search, targets, found, cuts, budget.part(OTHERS_STEPS))


CROWD: Final = 5_000
"""Number of targets above which a sample is explained."""

SAMPLE: Final = 16

ROUND_STEPS: Final = 15_000_000
"""Steps of the search for one sample. The end of a long chain is reached from above."""

MAX_ROUNDS: Final = 16

OBJECTS_A_TARGET: Final = 20
"""Objects that a walk may meet for each target. A root that leads to most of the process is given up."""

_WITHOUT_REFERENCES: Final = frozenset({str, bytes, int, float, complex, bool, type(None)})

_AT_ONCE: Final = 512
"""Objects whose references are requested in one call."""


def explain_crowd(  # noqa: PLR0913 - those of `explain`
    targets: Sequence[object],
    *,
    ignore: Collection[int] = (),
    budget: Budget,
    remember: Remember | None = None,
    frameworks: Sequence[ReferenceFinder] | None = None,
    groups: Mapping[int, int] = MappingProxyType({}),
) -> list[Explanation]:
    """Explain each of very many targets, as `explain` does for a few, with the same arguments and result.

    A target that the walk met has a sampled one's explanation: the same root. Others, not met within the budget, are held by
    "unknown", unless all explained ones have the same holder.
    """
    if len(targets) <= CROWD:
        return explain(targets, ignore=ignore, budget=budget, remember=remember, frameworks=frameworks, groups=groups)
    with PausedCollector():
        return _Crowd(targets, ignore, budget, remember, frameworks).explained()


@dataclasses.dataclass(eq=False, repr=False)
class _Crowd:
    _targets: Sequence[object]
    _ignore: Collection[int]
    _budget: Budget
    _remember: Remember | None
    _frameworks: Sequence[ReferenceFinder] | None

    def __post_init__(self) -> None:
        self._found: dict[int, Explanation] = {}
        self._wanted: set[int] = set()
        self._untouchable = untouchable_modules()
        self._patterns: dict[str, str] = {}

    def explained(self) -> list[Explanation]:
        left = [id(target) for target in self._targets]
        self._wanted.update(left)
        by_id = dict(zip(left, self._targets, strict=True))
        own = {id(by_id), id(self._targets), *self._ignore}
        for _ in range(MAX_ROUNDS):
            if not left or self._budget.spent:
                break
            self._explain([by_id[identity] for identity in _spread(left)], own)
            left = [identity for identity in left if identity not in self._found]
        rest = self._explanation_of_rest()
        by_id.clear()
        return [self._found.get(id(target), rest) for target in self._targets]

    def _explain(self, sample: list[object], own: set[int]) -> None:
        tops: list[tuple[Root, Any]] = []

        def note(root: Root, value: object) -> None:
            tops.append((root, value))
            if self._remember is not None:
                self._remember(root, value)

        budget = self._budget.part(ROUND_STEPS)
        found = explain(
            sample, ignore={id(sample), id(tops), *own}, budget=budget, remember=note, frameworks=self._frameworks
        )
        # One pattern a root: runs are compared by patterns, and those of unsampled targets are unknown.
        alike = [
            dataclasses.replace(one, pattern=self._patterns.setdefault(one.holder.root, one.pattern)) for one in found
        ]
        example = {one.holder.root: one for one in reversed(alike)}
        editable = {root.text for root, _ in tops if root.rank == EDITABLE}
        # An editable root may lead to targets that were explained by a frame, or not within the budget.
        for wanted in (True, False):
            for target, explanation in zip(sample, alike, strict=True):
                if wanted is (explanation.holder.root in editable):
                    self._found.setdefault(id(target), explanation)
                    self._wanted.discard(id(target))
            for root, value in tops:
                if wanted is (root.text in editable) and root.text in example:
                    self._walk(value, example[root.text])
        tops.clear()
        sample.clear()

    def _walk(self, top: object, explanation: Explanation) -> None:
        wanted, untouchable = self._wanted, self._untouchable
        room = OBJECTS_A_TARGET * len(self._targets)
        met = {id(top)}
        pending: deque[object] = deque([top])
        while pending and wanted and room > 0:
            part = [pending.popleft() for _ in range(min(_AT_ONCE, len(pending)))]
            children = get_referents(*part)
            if self._budget.worked(len(children)):
                return
            room -= len(children)
            for child in children:
                identity = id(child)
                if identity in met or identity in untouchable:
                    continue
                met.add(identity)
                if identity in wanted:
                    wanted.discard(identity)
                    self._found[identity] = explanation
                if type(child) not in _WITHOUT_REFERENCES and not reaches_everything(child):
                    pending.append(child)

    def _explanation_of_rest(self) -> Explanation:
        roots = {explanation.holder.root: explanation for explanation in self._found.values()}
        if len(roots) == 1:
            return next(iter(roots.values()))
        return Explanation(Holder("unknown", TIMEOUT_ROOT, TIMEOUT_ROOT), TIMEOUT_ROOT)


def _spread(identities: Sequence[int]) -> list[int]:
    """Choose the first, the last, and some in between: either end of a chain may be what the root holds."""
    ends = SAMPLE // 4
    if len(identities) <= SAMPLE:
        return list(identities)
    between = identities[ends:-ends]
    step = len(between) // (SAMPLE - 2 * ends)
    return [*identities[:ends], *between[::step][: SAMPLE - 2 * ends], *identities[-ends:]]

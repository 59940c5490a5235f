"""Complete a finding before it is reported: places, hints and texts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.stages import DESCRIBE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.evidence import Evidence, Survivor
    from pytest_gpuleak.model.findings import Finding, Holder


FIXTURE_ONCE = "a fixture is not run again by itself, and lines are recorded only in a re-run"
"""Why the lines of a fixture's arrays are unknown."""


def described(
    found: Finding, why: str, knowledge: SessionKnowledge, nodeid: str, why_line_unknown: str = ""
) -> Finding:
    """Return the finding with places and hint, or unchanged if that fails; `why` tells why no re-run ended."""
    from pytest_gpuleak.explain.annotate import annotate, for_script

    with knowledge.safeguards.guard(DESCRIBE, nodeid):
        told = annotate(found, why, knowledge.shorten, why_line_unknown or _why_no_line(found, why))
        return (
            told if knowledge.in_tests or told.hint is None else dataclasses.replace(told, hint=for_script(told.hint))
        )
    return dataclasses.replace(found, why_unconfirmed=why or None) if found.kind == "unconfirmed" else found


def _why_no_line(found: Finding, why: str) -> str:
    if why:
        return f"{why}, and lines are recorded only in a re-run"
    if found.kind == "growing":
        return "made in C++, in an installed library, or by a thread from before, while no line of yours was running"
    return "made by the first run alone, and lines are recorded only in a re-run"


@dataclasses.dataclass(frozen=True)
class Supplement:
    """What is known beside the evidence: `rings` of garbage by array, `lenders` of untracked arrays by memory."""

    rings: Mapping[int, Holder]
    lenders: Mapping[int, Holder]
    frames_count: bool

    def added_to(self, evidence: Evidence) -> Evidence:
        """Return the evidence with what is known beside."""
        if self.lenders:
            survivors = tuple(_with_lender(one, self.lenders) for one in evidence.survivors)
            evidence = dataclasses.replace(evidence, survivors=survivors)
        if self.rings:
            evidence = dataclasses.replace(evidence, rings=self.rings)
        return evidence if self.frames_count else _without_running_frames(evidence)


def _with_lender(survivor: Survivor, lenders: Mapping[int, Holder]) -> Survivor:
    holder = lenders.get(survivor.reading.storage)
    if holder is None or survivor.holder is None or holder.root == survivor.holder.root:
        return survivor
    return survivor._replace(others=(*survivor.others, holder))


def _without_running_frames(evidence: Evidence) -> Evidence:
    gone = {
        index
        for index, survivor in enumerate(evidence.survivors)
        if survivor.holder is not None and survivor.holder.kind == "frame" and index not in evidence.kept
    }
    if not gone:
        return evidence
    collected = {run: indices - gone for run, indices in evidence.collected.items()}
    return dataclasses.replace(evidence, alive=tuple(alive - gone for alive in evidence.alive), collected=collected)

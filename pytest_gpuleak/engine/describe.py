"""Complete a finding before it is reported: places, hints and texts, and why something is not known."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.engine.stages import DESCRIBE
from pytest_gpuleak.model.findings import CYCLE_ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.evidence import Evidence, Survivor
    from pytest_gpuleak.model.findings import Finding, Holder, Judged


FIXTURE_ALONE: Final = "a fixture is not run again by itself"
"""Why a fixture is not run again."""

SEARCH_CUT: Final = "the search for holders met its limit of objects, so that some may be missing"


def described(found: Finding, how: Judged, knowledge: SessionKnowledge, nodeid: str) -> Finding:
    """Return the finding with places and hint, unless that fails, and with how it was judged.

    `how` tells of the subject's runs. Its `why_no_line` is the reason for an unknown line, where the caller knows it.
    """
    from pytest_gpuleak.explain.annotate import annotate, for_script

    why = how.why_not_again
    if found.kind == "unconfirmed":
        found = dataclasses.replace(found, why_unconfirmed=found.why_unconfirmed or why or None)
    told = found
    with knowledge.safeguards.guard(DESCRIBE, nodeid):
        told = annotate(found, knowledge.shorten, how.why_no_line or _why_no_line(found, why))
        if told.hint is not None and not knowledge.in_tests:
            told = dataclasses.replace(told, hint=for_script(told.hint))
    return with_reasons(told, how)


def with_reasons(found: Finding, how: Judged) -> Finding:
    """Return the finding with how its subject was judged (`how`), and with why its holder or line is not known. Pure.

    A finding that was judged with a reason of its own keeps that.
    """
    own = how if found.judged is None else found.judged
    no_line = ""
    created = [*(one.created for one in found.tensors), *(one.created for one in found.contributions)]
    if not any(created):
        no_line = own.why_no_line or how.why_no_line or _why_no_line(found, how.why_not_again)
    no_holder = _why_no_holder(found)
    judged = dataclasses.replace(
        how,
        cut=own.cut,
        why_no_holder=no_holder,
        why_no_line=no_line,
        search_cut=how.search_cut or (SEARCH_CUT if no_holder == SEARCH_CUT else ""),
    )
    return dataclasses.replace(found, judged=judged)


def _why_no_line(found: Finding, why: str) -> str:
    if why:
        return f"{why}, and lines are recorded only in a re-run"
    if found.metric is not None:
        return "nothing that was recorded while it ran again tells of it"
    if found.kind == "growing":
        return "made in C++, in an installed library, or by a thread from before, or torch tells no mode of the call (`from_numpy`)"
    return "made by the first run alone, and lines are recorded only in a re-run"


def _why_no_holder(found: Finding) -> str:
    holder = found.holder
    if holder is None:
        return _NO_HOLDER.get(found.kind, "it was freed before its holder was searched for")
    if holder.kind not in ("native", "unknown") or holder.root == CYCLE_ROOT:
        return ""
    if holder.kind == "unknown" and not holder.root:
        return holder.text.removeprefix("unknown: ").removeprefix("unknown so far: ")
    from pytest_gpuleak.explain.rootless import CROWD_ROOT, NATIVE_ROOT

    if holder.kind == "native":  # a ring in C and a callback of atexit have names of their own
        return "nothing in Python leads to it: C++ keeps it" if holder.root.startswith(NATIVE_ROOT) else ""
    return "too many containers refer to it" if holder.root == CROWD_ROOT else SEARCH_CUT


_NO_HOLDER: Final[dict[str, str]] = {
    "cycle": "the cycle was freed before it could be read, goes through C++, or was too large to be read",
    "process": "no object in this process was found that refers to it",
    "unattributed": "a counter tells of it, and no object that holds it was found",
    "host": "a counter tells of it, and no object that holds it was found",
    "recompiled": "programs were counted, and no object that holds them was searched for",
}
"""Why a finding has no holder at all, by its kind."""


def supplemented(
    evidence: Evidence, rings: Mapping[int, Holder], lenders: Mapping[int, Holder], *, frames_count: bool
) -> Evidence:
    """Return the evidence with what is known beside: `rings` of garbage by array, `lenders` of memory by its key."""
    survivors = tuple(_with_lender(one, lenders) for one in evidence.survivors) if lenders else evidence.survivors
    evidence = dataclasses.replace(evidence, survivors=survivors, rings=rings)
    return evidence if frames_count else _without_running_frames(evidence)


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

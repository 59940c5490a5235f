"""Complete a finding before it is reported: places, hints and texts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.stages import DESCRIBE

if TYPE_CHECKING:
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.evidence import Evidence
    from pytest_gpuleak.model.findings import Finding


def described(found: Finding, why: str, knowledge: SessionKnowledge, nodeid: str) -> Finding:
    """Return the finding as it is reported, or unchanged if that fails.

    `why` tells why no re-run ended; `nodeid` is the test, or for a fixture ``baseid::name``.
    """
    from pytest_gpuleak.explain.annotate import annotate

    with knowledge.safeguards.guard(DESCRIBE, nodeid):
        return annotate(found, why, knowledge.shorten)
    return dataclasses.replace(found, why_unconfirmed=why or None) if found.kind == "unconfirmed" else found


def without_running_frames(evidence: Evidence) -> Evidence:
    """Return the evidence without what running frames hold. See `Subject.counts_running_frames`."""
    gone = {
        index
        for index, survivor in enumerate(evidence.survivors)
        if survivor.holder is not None and survivor.holder.kind == "frame"
    }
    return dataclasses.replace(evidence, alive=tuple(alive - gone for alive in evidence.alive)) if gone else evidence

"""State how a finding compares with a baseline. The state travels as a line of the finding's evidence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

State = Literal["known", "grown", "new"]

KNOWN, GROWN, NEW = "known (baseline): ", "grown (baseline): ", "new (baseline): "
"""Beginnings of the evidence line that a baseline adds to a finding."""

_LINE = re.compile(r"(known|grown|new) \(baseline\): (.*)", re.DOTALL)


class Standing(NamedTuple):
    """What a comparison with a baseline has found.

    Attributes:
        state: listed and no larger, listed and larger than tolerated, or not listed.
        text: the reason why it is tolerated, by how much it has grown, or that it is not listed.
    """

    state: State
    text: str


def is_standing(line: str) -> bool:
    """Tell whether a line of evidence was written by a baseline."""
    return line.startswith((KNOWN, GROWN, NEW))


def standing_of(finding: Finding) -> Standing | None:
    """Return how a finding compares with the baseline of its run; None without a baseline, or for a mere note."""
    for line in finding.evidence:
        match = _LINE.fullmatch(line)
        if match is not None:
            state: State = "known" if match[1] == "known" else "grown" if match[1] == "grown" else "new"
            return Standing(state, match[2])
    return Standing("known", "") if finding.known else None

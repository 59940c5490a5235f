"""How a finding stands to a baseline, as its evidence says it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

State = Literal["known", "grown", "new"]

KNOWN, GROWN, NEW = "known (baseline): ", "grown (baseline): ", "new (baseline): "
"""How the line begins that a finding's evidence has from a baseline."""

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
    """Whether a line of a finding's evidence is what a baseline says of it."""
    return line.startswith((KNOWN, GROWN, NEW))


def standing_of(finding: Finding) -> Standing | None:
    """Read how a finding stands to the baseline of its run; None where there was none, or for a mere note."""
    for line in finding.evidence:
        match = _LINE.fullmatch(line)
        if match is not None:
            # A word that the expression admits is one of the three.
            state: State = "known" if match[1] == "known" else "grown" if match[1] == "grown" else "new"
            return Standing(state, match[2])
    return Standing("known", "") if finding.known else None

"""Decide whether a walk over the heap for arrays is worth its time: most find nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge

RUNS_BEFORE_RECORD: Final = 2
"""Runs over which the heap must have grown before one is recorded."""

DOUBTED_RERUN_S: Final = 0.2
"""Seconds that one more run may take before a record that likely finds nothing: what a first use adds fades by then."""

FREE_S: Final = 1.5
"""Seconds of CPU time that a session may spend on growth that no array explains."""

SHARE: Final = 0.01
"""The same as a share of the session's CPU time: most growth of the heap is a cache or a first use."""

FREE_ONCE_S: Final = 0.5
"""Seconds for growth that no second run has repeated, of which most is a first use."""

WALK_S: Final = 0.4
"""Seconds that a walk is taken to need: 0.2 with torch, 0.4 with TensorFlow."""

FREE_DOUBTFUL_S: Final = 0.1
"""Seconds for growth that arrays explain only if they replaced as many smaller ones."""

SWAPPED_BYTES: Final = 16 * 1024 * 1024
"""Growth in bytes for which such arrays are looked for all the same: a table that takes the place of an empty one."""

FREE_BESIDE_LEAK_S: Final = 2.0
"""Seconds of CPU time that a session may spend on recording the host's memory for tests that arrays fail already.

With `SHARE_BESIDE_LEAK`. A leak of Keras's `JaxLayer` took a second re-run of 4 s and two walks of 2 s over its heap.
"""

SHARE_BESIDE_LEAK: Final = 0.02
"""The same as a share of the session's."""

FREE_BEFORE_RERUN_S: Final = 0.1
"""Seconds beyond which the re-run comes before what walks the whole heap, or `SHARE` of the session's."""


def comes_before_rerun(knowledge: SessionKnowledge) -> bool:
    """Tell whether what walks the whole heap comes before the re-run of a suspect that only the host's memory tells of."""
    return knowledge.can_afford(FREE_BEFORE_RERUN_S, SHARE)


def may_watch(knowledge: SessionKnowledge) -> bool:
    """Tell whether arrays are looked for at all."""
    return knowledge.can_afford(FREE_S, SHARE)


def runs_before_record(expected_s: float | None, *, adds_arrays: bool) -> int:
    """Return over how many runs of `expected_s` seconds the heap must have grown (see `may_record`)."""
    doubted = not adds_arrays and expected_s is not None and expected_s <= DOUBTED_RERUN_S
    return RUNS_BEFORE_RECORD + doubted


def may_record(knowledge: SessionKnowledge, *, beside_arrays: bool, adds_arrays: bool) -> bool:
    """Tell whether one more run is worth two walks, after runs that have all grown the heap.

    `beside_arrays` tells that other arrays were left, and `adds_arrays` that each run left more arrays than there were.
    """
    if not adds_arrays:
        return knowledge.is_within(knowledge.vain_records_s, FREE_DOUBTFUL_S, SHARE)
    return not beside_arrays or knowledge.is_within(knowledge.vain_records_s, FREE_ONCE_S, SHARE)


def may_record_beside_leak(knowledge: SessionKnowledge, expected_s: float | None) -> bool:
    """Tell whether what a test of `expected_s` seconds adds to the host is recorded where its arrays alone fail it."""
    return knowledge.is_within(knowledge.leak_records_s + (expected_s or 0.0), FREE_BESIDE_LEAK_S, SHARE_BESIDE_LEAK)


def may_search_once(knowledge: SessionKnowledge, grown: int, *, sure: bool, adds_arrays: bool) -> bool:
    """Tell whether what a single run has added, `grown` bytes, is worth a walk; `sure` tells that it will not be repeated."""
    if sure:
        return knowledge.can_afford(FREE_S, SHARE, knowledge.residue_s)
    if adds_arrays or grown >= SWAPPED_BYTES:
        return knowledge.can_afford(FREE_ONCE_S, SHARE, knowledge.residue_s)
    return knowledge.can_afford(0.0, SHARE, max(knowledge.residue_s, WALK_S))

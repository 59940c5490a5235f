"""Decide whether growth of the host's memory alone is worth a re-run."""

from __future__ import annotations

from typing import Final

RERUN_S: Final = 2.0
"""Seconds that re-runs for the host's memory alone may take in vain, or `RERUN_SHARE` of the session."""

RERUN_SHARE: Final = 0.04

QUICK_RERUN_S: Final = 0.05
"""Seconds of a re-run that is quick: for growth that would fail as a leftover it is made in any case."""

QUICK_SUM_S: Final = 0.5
"""Seconds that quick re-runs for less growth may take in vain, or `QUICK_SHARE` of the session."""

QUICK_SHARE: Final = 0.03

TRY_EVERY: Final = 8
"""Of the quick ones beyond that, one of so many is made all the same: what leaks is seldom one test alone."""


def why_not_worth_it(
    expected_s: float | None, elapsed_s: float, vain_s: float, *, small: bool = False, skipped: int = 0
) -> str:
    """Tell why a test is not run again for the host's memory alone; empty if it is.

    Most growth of the host is a first use: tables, compiled code, caches of a library. A leak is met again by a quicker
    test, or by this one later in the session. `expected_s` are the seconds of the re-run (None: unknown), `elapsed_s`
    those of the session, and `vain_s` those of such re-runs so far that found nothing. `small` is growth that fails only
    if it goes on; `skipped` tells how many re-runs for such growth were not made so far.
    """
    if expected_s is None:
        return ""
    if expected_s <= QUICK_RERUN_S:
        in_time = not small or vain_s <= max(QUICK_SUM_S, QUICK_SHARE * elapsed_s)
        if in_time or (skipped + 1) % TRY_EVERY == 0:
            return ""
        return (
            f"quick re-runs for a little growth of the host's memory alone have taken {vain_s:.1f} s and found nothing"
        )
    limit_s = max(RERUN_S, RERUN_SHARE * elapsed_s)
    if vain_s + expected_s <= limit_s:
        return ""
    if expected_s > limit_s:
        return f"a re-run would take {expected_s:.0f} s, over {limit_s:.0f} s, for growth of the host's memory alone"
    return f"re-runs for growth of the host's memory alone have taken {vain_s:.0f} s and found nothing"

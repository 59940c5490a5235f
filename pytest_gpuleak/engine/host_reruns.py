"""Decide whether growth of the host's memory alone is worth a re-run."""

from __future__ import annotations

from typing import Final

RERUN_S: Final = 2.0
"""Seconds that re-runs for the host's memory alone may take in vain, or `RERUN_SHARE` of the session."""

RERUN_SHARE: Final = 0.04

QUICK_RERUN_S: Final = 0.05
"""Seconds of a re-run that is quick: for growth that would fail as a leftover it is made in any case."""

QUICK_SUM_S: Final = 0.5
"""Seconds after which quick re-runs for less growth are rare, or `QUICK_SHARE` of the session."""

QUICK_SHARE: Final = 0.03

DOUBTFUL_SUM_S: Final = 0.1
"""The same where no array was added, so that only those that replaced smaller ones can explain so little growth."""

DOUBTFUL_SHARE: Final = 0.005

TRY_EVERY: Final = 8
"""Beyond these, one of so many is made all the same: what leaks is seldom one test alone."""


class HostReruns:
    """Keeps account of the re-runs for the host's memory alone, and decides on the next one by what they found.

    Most growth of the host is a first use: tables, compiled code, caches of a library. A leak is met again by a quicker
    test, or by the same one later in the session.
    """

    def __init__(self) -> None:
        self.vain_s = 0.0
        """Seconds that such re-runs have taken so far and found nothing."""
        self._skipped = 0
        self._doubted = 0

    def are_worth_a_doubt(self, elapsed_s: float) -> bool:
        """Tell whether a test is checked whose little growth no new array explains; `elapsed_s` are the session's seconds."""
        if self._is_within(DOUBTFUL_SUM_S, DOUBTFUL_SHARE, elapsed_s):
            return True
        self._doubted += 1
        return self._doubted % TRY_EVERY == 0

    def why_not(self, expected_s: float | None, elapsed_s: float, *, small: bool = False) -> str:
        """Tell why a test is not run again; empty if it is.

        `expected_s` are the seconds of the re-run (None: unknown), `elapsed_s` those of the session. `small` is growth
        that fails only if it goes on.
        """
        if expected_s is None:
            return ""
        if expected_s <= QUICK_RERUN_S:
            return self._why_not_quick(elapsed_s) if small else ""
        limit_s = max(RERUN_S, RERUN_SHARE * elapsed_s)
        if self.vain_s + expected_s <= limit_s:
            return ""
        if expected_s > limit_s:
            return (
                f"a re-run would take {expected_s:.0f} s, over {limit_s:.0f} s, for growth of the host's memory alone"
            )
        return f"re-runs for growth of the host's memory alone have taken {self.vain_s:.0f} s and found nothing"

    def _why_not_quick(self, elapsed_s: float) -> str:
        if self._is_within(QUICK_SUM_S, QUICK_SHARE, elapsed_s):
            self._skipped = 0
            return ""
        self._skipped += 1
        if self._skipped % TRY_EVERY == 0:
            return ""
        return f"quick re-runs for a little growth of the host's memory alone have taken {self.vain_s:.1f} s and found nothing"

    def _is_within(self, sum_s: float, share: float, elapsed_s: float) -> bool:
        return self.vain_s <= max(sum_s, share * elapsed_s)

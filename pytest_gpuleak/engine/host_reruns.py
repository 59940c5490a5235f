"""Decide whether growth of the host's memory alone is worth a re-run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.engine.settle.attempts import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

RERUN_S: Final = 2.0
"""Seconds that re-runs for the host's memory alone may take in vain, or `RERUN_SHARE` of the session."""

RERUN_SHARE: Final = 0.04

QUICK_RERUN_S: Final = 0.05
"""Seconds of a re-run that is quick: for growth that would fail as a leftover it is made in any case."""

SMALL_SUM_S: Final = 0.5
"""Seconds after which re-runs that are not slow, for less growth, are rare, or `SMALL_SHARE` of the session."""

SMALL_SHARE: Final = 0.03

SLOW_RERUN_S: Final = 0.25
"""Seconds of a re-run, or `SLOW_SHARE` of the session, from which it waits for a second test that grows alike."""

SLOW_SHARE: Final = 0.01

ALIKE: Final = 0.75
"""Two tests grow alike where one grows by at least so much of the other's growth."""

STANDS_OUT: Final = 2
"""How many times the largest growth so far that was in vain makes growth worth a re-run all the same."""

DOUBTFUL_SUM_S: Final = 0.1
"""The same where no array was added, so that only those that replaced smaller ones can explain so little growth."""

DOUBTFUL_SHARE: Final = 0.005

TRY_EVERY: Final = 8
"""Beyond these, one of so many is made all the same: what leaks is seldom one test alone."""

MOST_TRY_EVERY: Final = 32
"""The same where no array was added, after some more: twice as many lie between two of them each time."""


class HostReruns:
    """Keeps account of the re-runs for the host's memory alone, and decides on the next one by what they found.

    Most growth of the host is a first use: tables, compiled code, caches of a library. A leak is met again by a quicker
    test, or by the same one later in the session.
    """

    def __init__(self) -> None:
        self.vain_s = 0.0
        """Seconds that such re-runs have taken so far and found nothing."""
        self._largest_vain = 0
        self._waiting: list[int] = []
        self._small = Backoff(TRY_EVERY, TRY_EVERY)
        self._doubts = Backoff(TRY_EVERY, MOST_TRY_EVERY)

    def note_vain(self, seconds: float, grown: int) -> None:
        """Note re-runs that have found nothing, of a test that grew the host by `grown` bytes."""
        self.vain_s += seconds
        self._largest_vain = max(self._largest_vain, grown)

    def are_worth_a_doubt(self, elapsed_s: float, grown: int) -> bool:
        """Tell whether a test is checked that grew the host by less than fails, which no new array explains.

        `elapsed_s` are the session's seconds, `grown` the bytes.
        """
        if self._is_within(DOUBTFUL_SUM_S, DOUBTFUL_SHARE, elapsed_s) or self._stands_out(grown):
            return True
        return self._doubts.is_due()

    def _stands_out(self, grown: int) -> bool:
        return grown > STANDS_OUT * self._largest_vain

    def why_not(
        self,
        expected_s: float | None,
        elapsed_s: float,
        grown: int,
        *,
        small: bool = False,
        may_wait: Callable[[], bool] = bool,
    ) -> str:
        """Tell why a test is not run again; empty if it is.

        Args:
            expected_s: seconds of the re-run; None: unknown.
            elapsed_s: seconds of the session so far.
            grown: bytes by which the test has grown the host.
            small: whether this fails only if it goes on.
            may_wait: tells, if the re-run is slow, whether no new array explains the growth, and other tests follow: it is
                nearly always a first use then.
        """
        if expected_s is None:
            return ""
        slow = expected_s > max(SLOW_RERUN_S, SLOW_SHARE * elapsed_s)
        why = self._why_not_small(elapsed_s, grown) if small and not slow else ""
        if why or expected_s <= QUICK_RERUN_S:
            return why
        if slow and may_wait() and not self._grows_like_another(grown):
            return (
                f"a re-run would take {expected_s:.1f} s, and growth of the host's memory without a new array is nearly "
                "always a first use: the next test that grows alike is run again"
            )
        limit_s = max(RERUN_S, RERUN_SHARE * elapsed_s)
        if self.vain_s + expected_s <= limit_s:
            return ""
        if expected_s > limit_s:
            return (
                f"a re-run would take {expected_s:.0f} s, over {limit_s:.0f} s, for growth of the host's memory alone"
            )
        return f"re-runs for growth of the host's memory alone have taken {self.vain_s:.0f} s and found nothing"

    def _grows_like_another(self, grown: int) -> bool:
        if any(min(grown, other) >= ALIKE * max(grown, other) for other in self._waiting):
            return True
        self._waiting.append(grown)
        return False

    def _why_not_small(self, elapsed_s: float, grown: int) -> str:
        if self._is_within(SMALL_SUM_S, SMALL_SHARE, elapsed_s):
            self._small.begin_anew()
            return ""
        if self._small.is_due() or self._stands_out(grown):
            return ""
        return f"re-runs for growth of the host's memory alone have taken {self.vain_s:.1f} s and found nothing"

    def _is_within(self, sum_s: float, share: float, elapsed_s: float) -> bool:
        return self.vain_s <= max(sum_s, share * elapsed_s)

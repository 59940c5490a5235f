"""Collect the processes that each run of a suspect has left running: do they grow, and who holds them."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.confirm.reruns import AddedByReruns
from pytest_gpuleak.engine.stages import EXPLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpuleak.adapters.processes.facts import LeftProcess
    from pytest_gpuleak.engine.subject import Suspect
    from pytest_gpuleak.model.findings import Finding, Holder
    from pytest_gpuleak.model.source_files import Origin


class ProcessEvidence(AddedByReruns["list[LeftProcess]"]):
    """Collect what each run left running. Where the first run left nothing, re-runs are not examined."""

    def __init__(self, suspect: Suspect, first: Sequence[LeftProcess]) -> None:
        super().__init__()
        self._suspect = suspect
        self._first = list(first)
        self.wanted = bool(first)
        """Whether the first run left a process."""
        self._begins = self._is_anew = False
        """Whether the first run that counts is a re-run: what it has left goes with wider fixtures, as the first one's did."""
        self._running = list(first)
        self._pools: set[int] = {process.pool_id for process in first}
        self._holders: Mapping[int, Holder | None] = {}
        self._origins: dict[int, Origin] = {}

    def begin_anew(self) -> None:
        """Take this run for the first, unless that has left one: it has set up wider fixtures that stay."""
        self._begins = self._is_anew = not self.wanted

    def expect_run(self) -> None:
        """Note before a re-run which processes run, since they are not the re-run's."""
        if self.wanted or self._suspect.subject.rebuilds:
            self._suspect.tracker.processes.begin()

    def add_run(self, *, traced: bool = False) -> None:
        """Note what a re-run has left running, less what has ended meanwhile. One that is `traced` only tells lines."""
        processes = self._suspect.tracker.processes
        if self._begins:
            self._begins = False
            self._first = processes.left() if processes.suspects() else []
            self.wanted, self._running = bool(self._first), list(self._first)
            self._pools = {process.pool_id for process in self._first}
            return
        if not self.wanted:
            return
        from pytest_gpuleak.adapters.processes.facts import is_running

        left = processes.left()
        before, self._running = self._running, [process for process in self._running if is_running(process)]
        ended = [process for process in before if process not in self._running]
        # A pool starts workers when it needs them, up to its size: another worker of the same pool is no growth.
        new = [process for process in left if not process.pool_id or process.pool_id not in self._pools]
        self._running += left
        if not traced:
            replaced = _most_similar(new, ended)  # a pool replaces its workers
            self._added.append([process for process in new if process not in replaced])
        elif self._added:
            for process, like in _most_similar(new, self._added[0]).items():
                if process.pid in self._origins:
                    self._origins[like.pid] = self._origins[process.pid]

    @contextlib.contextmanager
    def noting_starts(self) -> Iterator[None]:
        """Note the lines that start processes, if the first run left any."""
        if not self.wanted:
            yield
            return
        from pytest_gpuleak.explain.process_handles import noting_starts

        with noting_starts(self._suspect.knowledge.is_user_file) as origins:
            try:
                yield
            finally:
                self._origins.update(origins)

    def explain(self) -> None:
        """Find who holds the processes."""
        if self.wanted:
            from pytest_gpuleak.explain.process_handles import holders_of

            with self._suspect.guard(EXPLAIN):
                self._holders = holders_of({process.pid for process in self._running})

    def judge(self, why: str) -> tuple[Finding, ...]:
        """Return one finding for each process; `why` tells why no re-run ended."""
        if not self.wanted:
            return ()
        from pytest_gpuleak.engine.judge.processes import LeftAgain, judge_processes, judge_unconfirmed

        readings = self._suspect.tracker.driver.read()
        if not self._added and self._is_anew:
            return ()
        if not self._added:
            return judge_unconfirmed(self._first, self._suspect.policy, readings, self._holders, why)
        grown = _most_similar(self._first, self._added[0]) if self.grows else {}
        more = {process.pid: another for process, another in grown.items()}
        staying = _staying([process for process in self._first if process.pid not in more], self._running)
        # The re-run left more than the first run had: judge what the re-run added.
        growing = [process for process in self._first if process.pid in more] or (self._added[0] if self.grows else [])
        return (
            *judge_processes(growing, readings, self._holders, again=LeftAgain(more, self._origins)),
            *judge_processes(staying, readings, self._holders, fails_from=self._suspect.policy.process_bytes),
        )


def _staying(first: Sequence[LeftProcess], running: Sequence[LeftProcess]) -> list[LeftProcess]:
    ended = [process for process in first if process not in running]
    others = [process for process in running if process not in first]
    heirs = _most_similar(others, ended)
    return [process for process in first if process in running] + list(heirs)


def _most_similar(processes: Sequence[LeftProcess], others: Sequence[LeftProcess]) -> dict[LeftProcess, LeftProcess]:
    """Pair each of `others` with the most similar process: the same command, else the same program, else any."""
    pairs: dict[LeftProcess, LeftProcess] = {}
    waiting = list(others)
    for alike in (_command, _program, _anything):
        left = []
        for other in waiting:
            like = next((one for one in processes if one not in pairs and alike(one) == alike(other)), None)
            if like is None:
                left.append(other)
            else:
                pairs[like] = other
        waiting = left
    return pairs


def _command(process: LeftProcess) -> str:
    return re.sub(r"\d+", "#", process.command)


def _program(process: LeftProcess) -> str:
    return process.program


def _anything(_process: LeftProcess) -> str:
    return ""

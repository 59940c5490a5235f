"""Adapt a pytest test to the engine's subject. Loaded with the first suspect."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pytest_gpuleak.adapters.processes.kinds import has_other_ranks
from pytest_gpuleak.engine.subject import RerunResult
from pytest_gpuleak.session.fixtures import is_wider, may_free
from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.pytest_internals import fixtures_of, log_handlers, release_values
from pytest_gpuleak.session.rerun.hanging import Hang
from pytest_gpuleak.session.rerun.rerun import Rerun, limit_of, run_again, tear_down_wider
from pytest_gpuleak.session.rerun.unseen.after_verdict import KEEPERS, keep_shared_values
from pytest_gpuleak.session.rerun.unseen.plugins import why_not_again
from pytest_gpuleak.session.rerun.unseen.restoring import Postponed, keep_each
from pytest_gpuleak.session.rerun.unseen.unseen import keep_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import pytest

    from pytest_gpuleak.adapters.protocol import SettleStep
    from pytest_gpuleak.engine.subject import FindingsSoFar
    from pytest_gpuleak.session.attempt import AttemptLog

_Result = TypeVar("_Result")

RERUN_ADVICE = "mark the test with @pytest.mark.gpu_leak(confirm=0), and it is not run again"
"""Advice to the user about a re-run that hangs."""


class Agents(Protocol):
    """Checks in helper processes, which wait for a re-run too: `session.features.children.agents.Agents`."""

    def ready(self) -> list[Any]:
        """Return those that wait for a re-run."""

    def ran(self, ready: list[Any], result: RerunResult) -> None:
        """Tell those that were ready how the re-run went."""


@dataclasses.dataclass(eq=False, repr=False)
class ItemSubject:
    """A suspected test, whose teardown is over; `expected_s` includes the fixtures to set up again.

    What fixtures hold is freed within `letting_go` (see `release_values`); `users_steps` are the ways of the settle hook.
    Its re-runs serve the `agents` of helper processes too. Before wider fixtures that re-runs have set up are torn down,
    `explain_late` searches for the holders of what waits.
    """

    item: pytest.Item
    nextitem: pytest.Item | None
    expected_s: float
    attempts: AttemptLog
    letting_go: Callable[[], AbstractContextManager[object]]
    users_steps: Callable[[str], Sequence[SettleStep]]
    purpose: str = "to tell whether it leaks"
    agents: Agents | None = None
    rebuilds: bool = False
    stays: bool = False
    explain_late: Callable[[], object] = lambda: None

    counts_running_frames = False

    def __post_init__(self) -> None:
        self.nodeid = self.item.nodeid
        self._limit_s = self.attempts.policy.confirm_limit_s
        self._postponed: Postponed | None = None

    def why_not_again(self) -> str:
        """Tell whether it took too long, is one of several ranks, or cannot be run in this process: see `Subject`."""
        if self.expected_s > self._limit_s:
            return f"its first run took {self.expected_s:.0f} s, over the limit of {self._limit_s:g} s"
        attempt = self.attempts.attempt
        if (attempt is not None and attempt.is_rank) or is_one_of_several_ranks(self.item.config):
            return "it is one rank of several, which would wait for each other"
        return why_not_again(self.item)

    def run_again(
        self,
        tracing: AbstractContextManager[object],
        known: FindingsSoFar,
        decided: Callable[[], bool] | None = None,
    ) -> RerunResult:
        """See `Subject`. What its setup decides here is not what an agent waits for."""
        ready = [] if self.agents is None else self.agents.ready()
        result = self._run(tracing, known, None if ready else decided)
        if self.agents is not None:
            self.agents.ran(ready, result)
        return result

    def run_for_agents(self) -> RerunResult:
        """Run again for the agents alone, if the test can be run again at all."""
        why = self.why_not_again()
        if why:
            return RerunResult(passed=False, why=why)
        try:
            return self._run(contextlib.nullcontext(), lambda _: (), None)
        finally:
            self.release()

    def _run(
        self,
        tracing: AbstractContextManager[object],
        known: FindingsSoFar,
        decided: Callable[[], bool] | None,
    ) -> RerunResult:
        """Run it again. If it hangs, the session ends with what is known."""
        postponed = self._postponed or Postponed()
        rerun = Rerun(self.item, self.nextitem, tracing, decided, self.purpose, postponed, lambda: self.stays)
        try:
            result = self._take(run_again, rerun, known)
        finally:
            if self._postponed is None:
                postponed.restore()
        if not result.passed:
            postponed.restore_process()  # `sys.last_traceback` holds the frames, and all fixtures are torn down
        return result

    def _take(self, step: Callable[[Rerun, float, Hang], _Result], rerun: Rerun, known: FindingsSoFar) -> _Result:
        attempts = self.attempts
        hang = Hang(attempts, "its re-run", RERUN_ADVICE, self.item, known)
        if attempts.note_rerun is not None:
            attempts.note_rerun(hang.record("the process died while the test was run again"))
        attempts.rerunning = True
        began = perf_counter()
        try:
            return step(rerun, limit_of(self.expected_s, self._limit_s), hang)
        finally:
            attempts.rerunning = False
            if attempts.attempt is not None:
                attempts.attempt.note_suspect("reruns", began)

    @contextlib.contextmanager
    def confirming(self) -> Iterator[None]:
        """See `Subject`."""
        restore = keep_each((*KEEPERS, lambda: keep_shared_values(self.item)))
        # Before the runs: the states of torch's generators are tensors.
        self._postponed = postponed = Postponed(keep_process(self.item, 1) if self.rebuilds else None)
        up = set(map(id, self._set_up()))
        try:
            yield
        finally:
            try:
                self._tear_down([fixture for fixture in self._set_up() if id(fixture) not in up], postponed)
            finally:
                self._postponed = None
                postponed.restore_process()
                postponed.restore()
                restore()  # not before the verdict: what the re-run has added may hold what leaked

    def _tear_down(self, stayed: Sequence[Any], postponed: Postponed) -> None:
        """Tear down the wider fixtures that have `stayed` set up, and the nodes that pytest has set up for them."""
        if not self.stays:
            return
        if any(may_free(fixture, self.item.parent) for fixture in stayed):
            self.explain_late()
        rerun = Rerun(self.item, self.nextitem, contextlib.nullcontext(), None, self.purpose, postponed)
        self._take(tear_down_wider, rerun, lambda _: ())

    def release(self) -> None:
        """See `Subject`."""
        release_values(self.item, log_handlers(self.item.config), self.letting_go)

    def settle_steps(self) -> Sequence[SettleStep]:
        """See `Subject`."""
        return self.users_steps(self.nodeid)

    def fixtures(self) -> Sequence[Any]:
        """See `Subject`."""
        return [fixture for fixture in fixtures_of(self.item) if is_wider(fixture)]

    def _set_up(self) -> list[Any]:
        return [fixture for fixture in self.fixtures() if getattr(fixture, "cached_result", None) is not None]


def is_one_of_several_ranks(config: pytest.Config) -> bool:
    """Tell whether this process is a rank of a distributed job: a re-run of one rank alone would hang the others."""
    return has_other_ranks(os.environ) or shared_frameworks(config).is_distributed()

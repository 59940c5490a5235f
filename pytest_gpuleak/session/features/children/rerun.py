"""One re-run of a test for the run's own check and for all agents."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.subject import RerunResult
from pytest_gpuleak.session.rerun.subject import ItemSubject

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpuleak.engine.subject import FindingsSoFar
    from pytest_gpuleak.session.features.children.agents import Agents


@dataclasses.dataclass(eq=False, repr=False)
class SharedSubject(ItemSubject):
    """A test whose re-runs serve `agents` too."""

    agents: Agents | None = None

    def run_again(
        self,
        tracing: AbstractContextManager[object],
        known: FindingsSoFar,
        decided: Callable[[], bool] | None = None,
    ) -> RerunResult:
        """See `Subject`. What its setup decides here is not what an agent waits for."""
        ready = [] if self.agents is None else self.agents.ready()
        result = super().run_again(tracing, known, None if ready else decided)
        if self.agents is not None:
            self.agents.ran(ready, result)
        return result

    def run_for_agents(self) -> RerunResult:
        """Run again for the agents alone, if the test can be run again at all."""
        why = self.why_not_again()
        if why:
            return RerunResult(passed=False, why=why)
        try:
            return super().run_again(contextlib.nullcontext(), lambda _: ())
        finally:
            self.release()

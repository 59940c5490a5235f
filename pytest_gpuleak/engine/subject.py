"""Define what can be suspected and run again: a pytest test, or a function. Loaded with the first suspect."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.protocol import SettleStep
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.policy import Policy

    FindingsSoFar = Callable[[str], tuple[Finding, ...]]
    """Returns what is known of the leaks, given why the check ends early."""


class RerunResult(NamedTuple):
    """How a re-run went: `why` tells in a few words what happened instead of passing."""

    passed: bool
    why: str = ""


class Subject(Protocol):
    """A test or a function that has left something behind. Derive from it where there is no runner of pytest's.

    Attributes:
        nodeid: pytest's id of the test, or the function's name.
        counts_running_frames: whether what a running frame holds was left behind. A local variable of a function's
            caller was; what a frame of pytest or a plugin holds goes when that frame returns.
        rebuilds: whether a re-run sets up wider fixtures again that its first run has torn down.
        stays: whether these are to stay set up from one re-run to the next, until `confirming` ends: the first run may have left
            something in them, as is known before the check, or found by it.
    """

    nodeid: str
    counts_running_frames: bool
    rebuilds: bool = False
    stays: bool = False

    def why_not_again(self) -> str:
        """Tell why it is not run again; empty if it is."""

    def run_again(
        self,
        tracing: AbstractContextManager[object],
        known: FindingsSoFar,
        decided: Callable[[], bool] | None = None,
    ) -> RerunResult:
        """Run it once more, with user code inside `tracing`; `known` tells the findings if it ends early.

        `decided` tells, after the setup, whether the rest is of no use. What was set up is torn down all the same.
        """

    def confirming(self) -> AbstractContextManager[object]:
        """Return a context from before the first re-run to after the verdict."""
        return contextlib.nullcontext()

    def release(self) -> None:
        """Release what its runner would release a moment later."""
        return None  # noqa: RET501 - a default, not an abstract method

    def settle_steps(self) -> Sequence[SettleStep]:
        """Return the user's own ways to free memory."""
        return ()

    def fixtures(self) -> Sequence[object]:
        """Return pytest's definitions of the wider fixtures that it uses."""
        return ()


class FunctionSubject(Subject):
    """A function, called without arguments: its errors reach the caller. None for a block of code, which runs once."""

    counts_running_frames = True

    def __init__(self, function: Callable[[], object] | None = None) -> None:
        self._function = function
        self.nodeid = getattr(function, "__name__", "block")

    def why_not_again(self) -> str:
        """Return why a block of code is not run again; empty for a function."""
        return "" if self._function is not None else "a block runs once"

    def run_again(
        self,
        tracing: AbstractContextManager[object],
        known: FindingsSoFar,
        decided: Callable[[], bool] | None = None,
    ) -> RerunResult:
        """Call the function again; its errors reach the caller. A function has no setup, after which it could end."""
        del known, decided
        if self._function is not None:
            with tracing:
                self._function()
        return RerunResult(passed=True)


@dataclasses.dataclass(frozen=True)
class Suspect:
    """A subject that is checked: what its runs are tracked by, what is known beside them, and what they are judged by."""

    tracker: RunTracker
    knowledge: SessionKnowledge
    subject: Subject
    policy: Policy

    def guard(self, stage: Stage) -> Guard:
        """Return the context for a stage of its check."""
        return self.knowledge.safeguards.guard(stage, self.subject.nodeid)

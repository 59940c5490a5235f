"""A test that runs in another process, as the engine's subject."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpuleak.engine.subject import RerunResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.protocol import SettleStep
    from pytest_gpuleak.engine.subject import FindingsSoFar


class Wire(Protocol):
    """The agent's side of the connection."""

    def send(self, **message: Any) -> None:
        """Send a message."""

    def receive(self) -> dict[str, Any]:
        """Wait for the next message."""


class ElsewhereSubject:
    """A test of the run: to run it again is to tell the run that this process is ready, and to wait."""

    counts_running_frames = True  # the loop of a server is one
    expected_s: float | None = None

    def __init__(self, wire: Wire, nodeid: str, seq: int) -> None:
        self._wire = wire
        self._seq = seq
        self.nodeid = nodeid

    def why_not_again(self) -> str:
        """Return nothing: the run tells why, where it does not run the test again."""
        return ""

    def run_again(
        self,
        tracing: AbstractContextManager[object],
        known: FindingsSoFar,
        decided: Callable[[], bool] | None = None,
    ) -> RerunResult:
        """See `Subject`. Tracing is per thread, and user code runs in others."""
        del tracing, known, decided
        self._wire.send(op="ready", seq=self._seq)
        message = self._wire.receive()
        return RerunResult(message["op"] == "ran" and bool(message["passed"]), str(message.get("why", "")))

    def confirming(self) -> AbstractContextManager[object]:
        """Return a context that changes nothing."""
        return contextlib.nullcontext()

    def release(self) -> None:
        """Do nothing: no runner is here."""

    def settle_steps(self) -> Sequence[SettleStep]:
        """Return no steps: the settle hook is the run's."""
        return ()

    def fixtures(self) -> Sequence[object]:
        """Return nothing: fixtures are the run's."""
        return ()

"""A test that runs in another process, as the engine's subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpuleak.engine.subject import RerunResult, Subject

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpuleak.engine.subject import FindingsSoFar


class Wire(Protocol):
    """The agent's side of the connection."""

    def send(self, **message: Any) -> None:
        """Send a message."""

    def receive(self) -> dict[str, Any]:
        """Wait for the next message."""

    def has_grown(self) -> bool:
        """Tell whether the run that is under way has left anything here so far."""


class ElsewhereSubject(Subject):
    """A test of the run: to run it again is to tell the run that this process is ready, and to wait.

    The settle hook and the fixtures are the run's.
    """

    counts_running_frames = True  # the loop of a server is one

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
        *,
        twice: bool = False,
    ) -> RerunResult:
        """See `Subject`. Tracing is per thread, and user code runs in others."""
        del tracing, known, decided, twice
        self._wire.send(op="ready", seq=self._seq)
        while (message := self._wire.receive())["op"] == "look":
            self._wire.send(op="looked", seq=self._seq, grown=self._wire.has_grown())
        return RerunResult(message["op"] == "ran" and bool(message["passed"]), str(message.get("why", "")))

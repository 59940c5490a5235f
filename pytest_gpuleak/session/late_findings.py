"""Hold the findings of one process whose holders are searched for after their tests were reported, many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.session.pytest_internals import paused_timer

if TYPE_CHECKING:
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.waiting import Explained, WaitingFindings
    from pytest_gpuleak.session.own_modules import OwnModules

INTERRUPTED = "the search at the end of the run was interrupted by Ctrl-C"
"""Why holders are unknown."""


class LateFindings:
    """Give `taker` to the checks of suspects, unless holders decide (`at_once`), and search when it is time."""

    def __init__(
        self, tracker: RunTracker, knowledge: SessionKnowledge, own_modules: OwnModules, *, at_once: bool
    ) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._own_modules = own_modules
        self._at_once = at_once
        self._waiting: WaitingFindings | None = None
        self.explained: list[Explained] = []
        """Findings whose holders were searched for after their tests were reported."""

    @property
    def taker(self) -> WaitingFindings | None:
        """Who takes findings that are explained later; None where the verdict depends on the holder."""
        if self._waiting is None and not self._at_once:
            from pytest_gpuleak.engine.waiting import WaitingFindings

            self._waiting = WaitingFindings(self._tracker, self._knowledge)
        return self._waiting

    def explain_due(self) -> None:
        """Search if so many wait that they are to be explained now."""
        if self._waiting is not None and self._waiting.is_due:
            self.explain()

    def explain(self) -> None:
        """Search for the holders of all findings that wait, together."""
        if self._waiting is not None and not self._waiting.is_empty:
            self._own_modules.keep()
            with paused_timer(), self._tracker.counters.kept_apart():
                self.explained += self._waiting.explain()

    def finish(self) -> None:
        """Search for the last holders. Raises KeyboardInterrupt once the findings say that the search was interrupted."""
        try:
            self.explain()
        except KeyboardInterrupt:
            if self._waiting is not None:  # always, here
                self.explained += self._waiting.give_up(INTERRUPTED)
            raise

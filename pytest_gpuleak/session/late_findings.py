"""Hold the findings of one process whose holders are searched for after their tests were reported, many at once."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from pytest_gpuleak.session.pytest_internals import paused_timer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.engine.late import Explained, LateSearch
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.records import Verdict
    from pytest_gpuleak.session.own_modules import OwnModules

INTERRUPTED = "the search at the end of the run was interrupted by Ctrl-C"
"""Why holders are unknown."""


class LateFindings:
    """Take the findings of suspects, unless holders decide, and search when it is time."""

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge, own_modules: OwnModules) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._own_modules = own_modules
        self._search: LateSearch | None = None
        self.explained: list[tuple[str, Verdict, tuple[Finding, ...], float]] = []
        """Findings whose holders were searched for after their tests were reported, with each test's share of the seconds."""

    def prepare(self, *, at_once: bool) -> None:
        """Let the next suspect's findings wait, unless the verdict depends on the holder (`at_once`)."""
        if self._search is None and not at_once:
            from pytest_gpuleak.engine.late import LateSearch

            self._search = LateSearch(self._tracker, self._knowledge)
        self._knowledge.late = None if at_once else self._search

    def explain_due(self) -> None:
        """Search if so many wait that they are to be explained now."""
        if self._search is not None and self._search.is_due:
            self.explain()

    def explain(self) -> None:
        """Search for the holders of all findings that wait, together."""
        if self._search is not None and not self._search.is_empty:
            self._own_modules.keep()
            began = perf_counter()
            with paused_timer(), self._tracker.counters.apart.kept_apart():
                found = self._search.explain()
            self._note(found, began)

    def finish(self) -> None:
        """Search for the last holders. Raises KeyboardInterrupt once the findings say that the search was interrupted."""
        try:
            self.explain()
        except KeyboardInterrupt:
            if self._search is not None:  # always, here
                self._note(self._search.give_up(INTERRUPTED), perf_counter())
            raise

    def _note(self, found: Sequence[Explained], began: float) -> None:
        share_s = (perf_counter() - began) / max(len(found), 1)
        self.explained += [(*one, share_s) for one in found]

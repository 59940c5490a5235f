"""Write the report section of a test that ran out of memory."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pytest_gpuleak.model.readings import HOST
from pytest_gpuleak.session.features.out_of_memory.facts import read_facts
from pytest_gpuleak.session.features.out_of_memory.text import (
    HOST_SECTION,
    SECTION,
    explain_out_of_memory,
    find_shortage,
)
from pytest_gpuleak.session.pytest_internals import warn

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge


class OutOfMemorySection:
    """Tell in a failing test's report who holds the memory. `explain_waiting` searches for holders not known yet."""

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge, explain_waiting: Callable[[], object]) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._explain_waiting = explain_waiting
        self._warned = False

    def add(self, item: pytest.Item, error: BaseException, report: pytest.TestReport) -> None:
        """Add the section where memory ran out. It allocates nothing on a device and keeps no traceback."""
        try:
            shortage = find_shortage(error)
            if shortage is not None:
                self._explain_waiting()
                lines = explain_out_of_memory(read_facts(self._tracker, self._knowledge, shortage))
                title = HOST_SECTION if shortage.device == HOST else SECTION
                report.sections.append((title, "\n".join(lines)))
        except Exception as failure:  # noqa: BLE001 - there may be no memory left to say it with
            self._warn(item, type(failure).__name__)

    def _warn(self, item: pytest.Item, what: str) -> None:
        if not self._warned:
            self._warned = True
            with suppress(Exception):
                warn(item.config, f"who holds the memory could not be told: {what}", item.nodeid)

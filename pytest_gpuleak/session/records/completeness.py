"""Tell whether a run's report is complete: which tests were to run, which have ended, what stopped the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.text import clean_text, count_of
from pytest_gpuleak.session.attempt import outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.model.outcomes import Outcome, TestRecord

DESELECTED_KEY = "gpu_leak_deselected"
"""Key of the number of tests that a worker deselected, in xdist's ``workeroutput``."""

_REASON_LIMIT = 300
_GRAVITY: tuple[Outcome, ...] = ("passed", "xpassed", "xfailed", "skipped", "error", "failed")


class RunProgress:
    """Follow which tests are to run, run and have ended."""

    def __init__(self) -> None:
        self.deselected = 0
        """Tests that were collected and deselected; of workers, which collect the same tests, the highest number."""
        self._expected: dict[str, None] = {}
        self._copies = 1
        self._running: dict[str, int] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._uncollected = 0
        self._stopped = ""
        self._lost_workers: list[str] = []

    @property
    def running(self) -> tuple[str, ...]:
        """Return the tests that have started and not ended, by nodeid."""
        return tuple(self._running)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file or class that could not be collected: its tests are missing."""
        self._uncollected += report.failed

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count tests that do not run in this process."""
        self.deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the tests that will run."""
        self._expected = dict.fromkeys(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[object]) -> None:
        """Note that with ``--dist=each`` every worker runs every test."""
        self._copies = len(specs) if config.getoption("dist", "no") == "each" else 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        """Record the tests that a worker will run."""
        self._expected.update(dict.fromkeys(ids))

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Record that a worker has ended or died."""
        output = getattr(node, "workeroutput", None) or {}
        self.deselected = max(self.deselected, output.get(DESELECTED_KEY, 0))
        if error:
            self._lost_workers.append(f"the worker {node.gateway.id} died: {error}")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Record that the user, a plugin or `pytest.exit` ended the run."""
        error = excinfo.value
        if isinstance(error, pytest.exit.Exception):
            self._stopped = self._stopped or f"pytest.exit: {error.msg}"
        else:  # also `Session.Interrupted`, which has a text
            self._stopped = self._stopped or str(error) or "interrupted (KeyboardInterrupt)"

    def pytest_internalerror(self, excrepr: object) -> None:
        """Record that pytest or a plugin failed."""
        if not self._stopped:
            lines = [line.strip() for line in str(excrepr).splitlines() if line.strip()]
            self._stopped = f"internal error: {lines[-1] if lines else 'unknown'}"

    def note_started(self, nodeid: str) -> None:
        """Record that a test starts."""
        self._running[nodeid] = self._running.get(nodeid, 0) + 1

    def note_report(self, report: pytest.TestReport) -> None:
        """Record a running test's report, for the outcome of a test that brings no record."""
        outcome, known = outcome_of(report), self.outcome_of_running(report.nodeid)
        if _GRAVITY.index(outcome) > _GRAVITY.index(known):
            self._outcomes[report.nodeid] = outcome

    def outcome_of_running(self, nodeid: str) -> Outcome:
        """Return the outcome of a running test, as its reports so far tell."""
        return self._outcomes.get(nodeid, "passed")

    def note_ended(self, nodeid: str) -> None:
        """Record that a test has ended. With ``--dist=each`` another worker may still run it."""
        if self._outcomes:
            self._outcomes.pop(nodeid, None)
        if self._running:
            left = self._running.pop(nodeid, 0) - 1
            if left > 0:
                self._running[nodeid] = left

    def why_incomplete(self, session: pytest.Session, records: Iterable[TestRecord]) -> str | None:
        """Return why tests are missing from the report, as one line, or None. A dead process's test has a record."""
        ended = Counter(nodeid for nodeid, _ in {(record.nodeid, record.worker) for record in records})
        missing = sum(max(0, self._copies - ended[nodeid]) for nodeid in self._expected)
        if not (missing or self._uncollected):
            return None
        reasons = [str(session.shouldfail or self._stopped or session.shouldstop or "")]
        if self._uncollected and not reasons[0]:
            reasons.append(f"{count_of(self._uncollected, 'error')} during collection")
        reasons += self._lost_workers
        if missing:
            tests = count_of(self._copies * len(self._expected), "test")
            reasons.append(f"{missing} of {tests} did not run to the end")
        return "; ".join(clean_text(reason, _REASON_LIMIT) for reason in reasons if reason)

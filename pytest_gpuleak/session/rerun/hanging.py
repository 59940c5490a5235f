"""Report a hanging check, in the watchdog's thread, and end the session. No fixture is torn down meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_gpuleak.engine import limits
from pytest_gpuleak.engine.judge.arrays import conclude
from pytest_gpuleak.engine.stages import CheckTimeoutError
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.session.pytest_internals import warn
from pytest_gpuleak.session.report_record import HUNG_ATTRIBUTE, attach, note_properties
from pytest_gpuleak.session.rerun.watchdog import CannotWatchError, describe_place, watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.outcomes import TestRecord
    from pytest_gpuleak.session.attempt import AttemptLog
    from pytest_gpuleak.session.rerun.notice import Notice

_Answer = TypeVar("_Answer")

NAME_LIMIT = 200


@dataclasses.dataclass(eq=False, repr=False)
class Hang:
    """A part of the check that may hang (`what`), of a test or of the running one; `findings` returns the known leaks.

    `notice` tells on the terminal that it takes long. `lift` is called before the reports are written, if it hangs.
    """

    attempts: AttemptLog
    what: str
    advice: str
    item: pytest.Item | None = None
    findings: Callable[[str], tuple[Finding, ...]] | None = None

    notice: Notice | None = dataclasses.field(default=None, init=False)
    lift: Callable[[], None] | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        nodeid = self.attempts.nodeid if self.item is None else self.item.nodeid
        self._name = clean_text(nodeid or "the session", NAME_LIMIT)
        self.text = f"gpu-leak: {self._name} hangs in {self.what}: {self.advice}"

    def takes(self, seconds: float) -> None:
        """See `Watched`."""
        if self.notice is not None:
            self.notice.show(seconds)

    def hangs(self, frame: FrameType | None, stderr: int) -> None:
        """Report what hangs and write the reports: see `Watched`."""
        place = describe_place(frame, self.attempts.root)
        line = (
            f"gpu-leak: {self._name} hangs in {self.what} at {place} and cannot be stopped; "
            f"the session ends here with exit status 1. To avoid it: {self.advice}"
        )
        os.write(stderr, f"\n{line}\n".encode("ascii", "backslashreplace"))
        _end_session(self.attempts, self._report(f"{self.what} hung at {place}"), line, self.lift)

    def over(self) -> None:
        """Set pytest's own timer (``faulthandler_timeout``) again: see `Watched`."""
        config = self.attempts.config
        if not config.pluginmanager.hasplugin("faulthandler"):
            return
        from _pytest import faulthandler as plugin

        with contextlib.suppress(Exception):  # private names: without them the timer stays off until the next test
            timeout = plugin.get_timeout_config_value(config)
            if timeout > 0:
                import faulthandler

                leave: Any = getattr(plugin, "get_exit_on_timeout_config_value", lambda _config: False)
                stderr = config.stash[plugin.fault_handler_stderr_fd_key]
                faulthandler.dump_traceback_later(timeout, file=stderr, exit=leave(config))

    def record(self, why: str) -> TestRecord:
        """Return the test's record, should the process end now."""
        record = self.attempts.unchecked(self.item, why)
        findings: tuple[Finding, ...] = ()
        if self.findings is not None:
            with contextlib.suppress(Exception):  # the reason stands without them
                findings = self.findings(why)
        if not findings:
            return record
        verdict, findings = conclude(findings, self.attempts.policy)
        allowed = self.attempts.policy.allowed if verdict == "allowed" else None
        return record._replace(verdict=verdict, why_unchecked=None, findings=findings, allowed=allowed)

    def _report(self, why: str) -> pytest.TestReport:
        record = self.record(why)
        nodeid = record.nodeid
        location = (nodeid.partition("::")[0], None, nodeid) if self.item is None else self.item.location
        report = pytest.TestReport(nodeid, location, {}, "passed", None, "teardown")
        attach(report, record)
        note_properties(report, record)
        setattr(report, HUNG_ATTRIBUTE, True)
        return report


def run_bounded(attempts: AttemptLog, call: Callable[[], _Answer], what: str, advice: str) -> _Answer:
    """Call a part of the check that may wait, as `engine.stages.Safeguards.bounded` says. Raises CheckTimeoutError."""
    results: list[_Answer] = []
    hang = Hang(attempts, what, advice)
    try:
        stopped = watch(lambda: results.append(call()), limits.CHECK_LIMIT_S, CheckTimeoutError, hang)
    except CannotWatchError:
        return call()
    if not results:
        raise CheckTimeoutError
    if stopped:
        attempts.tell(f"{what} took longer than {limits.CHECK_LIMIT_S:g} s")
    return results.pop()


def _end_session(attempts: AttemptLog, report: pytest.TestReport, line: str, lift: Callable[[], None] | None) -> None:
    config = attempts.config
    if os.getpid() != attempts.process:
        return  # a fork, whose parent writes the reports
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    steps: list[Callable[[], object]] = [] if lift is None else [lift]
    if capture is not None:
        steps.append(lambda: capture.suspend(in_=True))
    # From a worker, xdist's controller takes the report, notes that it died, and starts another for the rest.
    is_worker = hasattr(config, "workerinput")
    if is_worker:
        steps.append(lambda: warn(config, line.removeprefix("gpu-leak: "), report.nodeid))
    steps.append(lambda: config.hook.pytest_runtest_logreport(report=report))
    if not is_worker:
        steps.append(lambda: _finish(attempts, line))
    for step in (*steps, _end_children, sys.stdout.flush, sys.stderr.flush):
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - the remaining steps matter more
            text = clean_text(f"gpu-leak: while the session was ended: {type(error).__name__}: {error}", 400)
            os.write(2, f"{text}\n".encode("ascii", "backslashreplace"))


def _finish(attempts: AttemptLog, line: str) -> None:
    """Let plugins write what they have, without tearing fixtures down, since the hanging thread uses them."""
    config = attempts.config
    own: Any = config.pluginmanager.get_plugin("gpuleak-session")
    session: Any = config.pluginmanager.get_plugin("session")
    attempts.hangs = True
    session.shouldstop = line.removeprefix("gpu-leak: ")
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
    # Our hook first: another plugin's may fail.
    own.pytest_sessionfinish(session=session, exitstatus=pytest.ExitCode.TESTS_FAILED)
    without = [own, config.pluginmanager.get_plugin("runner")]
    finish = config.pluginmanager.subset_hook_caller("pytest_sessionfinish", [one for one in without if one])
    finish(session=session, exitstatus=pytest.ExitCode.TESTS_FAILED)


def _end_children() -> None:
    # multiprocessing would end them with the interpreter.
    processes: Any = sys.modules.get("multiprocessing.process")
    for child in list(getattr(processes, "_children", ())):
        if child.daemon:
            child.terminate()

"""What is said and written where the check hangs and the session has to be ended. Loaded with the first re-run.

Runs in the watchdog's thread, while the main thread hangs in the user's code or in a device's driver. Nothing of the
hanging thread is touched: no fixture is torn down. Each step is tried for itself, and the watchdog bounds them all.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.engine.judge.arrays import conclude
from pytest_gpuleak.engine.settle.steps import Collection
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.session.pytest_internals import warn
from pytest_gpuleak.session.report_record import HUNG_ATTRIBUTE, attach
from pytest_gpuleak.session.rerun.watchdog import CannotWatchError, describe_place, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from pytest_gpuleak.adapters.protocol import Rung
    from pytest_gpuleak.engine.run_tracker import Monitor
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.outcomes import TestRecord

CHECK_LIMIT_S = 60.0
"""Seconds that one wait of the check's own may take: the user's settle hook, a device, its driver, processes."""

NAME_LIMIT = 200

_END: Any = object()


class CheckTimeoutError(TimeoutError):
    """Raised in a part of the check that takes too long."""

    def __init__(self) -> None:
        super().__init__(f"it took longer than {CHECK_LIMIT_S:g} s and was stopped")


class Hang:
    """Tells of a part of the check that hangs, and writes what is known.

    Args:
        monitor: watches the process.
        what: the part, as in "hangs in ...".
        advice: what the user can do.
        item: the test; None where only its id is known.
        findings: what is known of the test's leaks. Called when something hangs.
        before: called before anything is reported.
    """

    def __init__(
        self,
        monitor: Monitor,
        what: str,
        advice: str,
        item: pytest.Item | None = None,
        findings: Callable[[str], tuple[Finding, ...]] | None = None,
        before: Callable[[], object] = int,
    ) -> None:
        self._monitor = monitor
        self._what = what
        self._advice = advice
        self._item = item
        self._findings = findings
        self.before = before

    @property
    def text(self) -> str:
        """What can be told of it beforehand."""
        return f"gpu-leak: {self._name()} hangs in {self._what}: {self._advice}"

    def tell(self, frame: FrameType | None, stderr: int) -> None:
        """Say what hangs, write the reports, and return: the watchdog then ends the process.

        Args:
            frame: the innermost one of the thread that hangs.
            stderr: a descriptor of the process's stderr.
        """
        monitor = self._monitor
        place = describe_place(frame, monitor.is_user_file, monitor.shorten)
        why = f"{self._what} hung at {place}"
        line = (
            f"gpu-leak: {self._name()} hangs in {self._what} at {place} and cannot be stopped; "
            f"the session ends here with exit status 1. To avoid it: {self._advice}"
        )
        os.write(stderr, f"\n{line}\n".encode("ascii", "backslashreplace"))
        _end_session(monitor, self._report(why), line, self.before)

    def record(self, why: str) -> TestRecord:
        """The test's record, should the process end now."""
        record = self._monitor.unchecked(self._item, why)
        findings: tuple[Finding, ...] = ()
        if self._findings is not None:
            with contextlib.suppress(Exception):  # the reason stands without them
                findings = self._findings(why)
        if not findings:
            return record
        policy = self._monitor.policy
        verdict, findings = conclude(findings, policy)
        return record._replace(
            verdict=verdict,
            why_unchecked=None,
            findings=findings,
            allowed=policy.allowed if verdict == "allowed" else None,
        )

    def _report(self, why: str) -> pytest.TestReport:
        """The report that the test's teardown would have brought."""
        record = self.record(why)
        nodeid = record.nodeid
        location = (nodeid.partition("::")[0], None, nodeid) if self._item is None else self._item.location
        report = pytest.TestReport(nodeid, location, {}, "passed", None, "teardown")
        attach(report, record)
        setattr(report, HUNG_ATTRIBUTE, True)
        return report

    def _name(self) -> str:
        nodeid = self._monitor.nodeid if self._item is None else self._item.nodeid
        return clean_text(nodeid or "the session", NAME_LIMIT)


def run_bounded(monitor: Monitor, call: Callable[[], Any], what: str, advice: str) -> Any:
    """Call a part of the check that may wait for something, and return what it returns.

    Args:
        monitor: watches the process.
        call: the part.
        what: what it is, in words.
        advice: what the user can do if it hangs.

    Raises:
        CheckTimeoutError: it was stopped after `CHECK_LIMIT_S`. Where it cannot be stopped, the session is ended.
    """
    results: list[Any] = []
    hang = Hang(monitor, what, advice)
    try:
        stopped = watch(
            lambda: results.append(call()),
            CHECK_LIMIT_S,
            CheckTimeoutError,
            hang.tell,
            hang.text,
            lambda: rearm_faulthandler(monitor.config),
        )
    except CannotWatchError:
        return call()
    if not results:
        raise CheckTimeoutError
    if stopped:
        monitor.memory.tell(f"{what} took longer than {CHECK_LIMIT_S:g} s")
    return results.pop()


class BoundedRung:
    """A rung of the settle ladder whose steps may take `CHECK_LIMIT_S` each.

    Args:
        monitor: watches the process.
        rung: climbed as it is.
        what: what it waits for, in words.
    """

    def __init__(self, monitor: Monitor, rung: Rung, what: str) -> None:
        self._monitor = monitor
        self._rung = rung
        self._what = what

    @property
    def collects(self) -> bool:
        """See `Rung`."""
        return self._rung.collects

    def steps(self) -> Iterator[None]:
        """Act; a step that takes too long is the last one."""
        steps = self._rung.steps()
        advice = "look at what it waits for"
        try:
            while run_bounded(self._monitor, lambda: next(steps, _END), self._what, advice) is not _END:
                yield
        except CheckTimeoutError:
            self._monitor.memory.tell(f"{self._what} was stopped after {CHECK_LIMIT_S:g} s")


def full_collection(monitor: Monitor) -> Rung:
    """Return the rung of a full collection: a ``__del__`` that it calls may wait for ever."""
    return BoundedRung(monitor, Collection(2), "a finalizer that a garbage collection called")


def device_rungs(monitor: Monitor) -> list[Rung]:
    """Return the rungs that let memory of the devices go: a device may never be done."""
    return [BoundedRung(monitor, rung, "waiting for the device") for rung in monitor.memory.rungs()]


def rearm_faulthandler(config: pytest.Config) -> None:
    """Set pytest's own timer (``faulthandler_timeout``) again: there is one in a process, and the watchdog took it."""
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


def _end_session(monitor: Monitor, report: pytest.TestReport, line: str, before: Callable[[], object]) -> None:
    config = monitor.config
    if os.getpid() != monitor.process:
        return  # a fork, whose parent writes the reports
    steps: list[Callable[[], object]] = [before, lambda: _suspend_capture(config)]
    if hasattr(config, "workerinput"):
        # The controller takes what it is sent, reports that the worker died, and starts another for what is left.
        steps += [
            lambda: warn(config, line.removeprefix("gpu-leak: "), report.nodeid),
            lambda: config.hook.pytest_runtest_logreport(report=report),
        ]
    else:
        steps += [
            lambda: config.hook.pytest_runtest_logreport(report=report),
            lambda: _finish(monitor, line),
        ]
    for step in (*steps, _end_children, sys.stdout.flush, sys.stderr.flush):
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - what is left of the steps counts for more
            text = clean_text(f"gpu-leak: while the session was ended: {type(error).__name__}: {error}", 400)
            os.write(2, f"{text}\n".encode("ascii", "backslashreplace"))


def _finish(monitor: Monitor, line: str) -> None:
    """Let the plugins write what they have, without what tears fixtures down: they are in use by the thread that hangs."""
    config = monitor.config
    own: Any = config.pluginmanager.get_plugin("gpuleak-session")
    session: Any = config.pluginmanager.get_plugin("session")
    monitor.hangs = True
    session.shouldstop = line.removeprefix("gpu-leak: ")
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
    # Ours first: another plugin's may fail.
    own.pytest_sessionfinish(session=session, exitstatus=pytest.ExitCode.TESTS_FAILED)
    without = [own, config.pluginmanager.get_plugin("runner")]
    finish = config.pluginmanager.subset_hook_caller("pytest_sessionfinish", [one for one in without if one])
    finish(session=session, exitstatus=pytest.ExitCode.TESTS_FAILED)


def _suspend_capture(config: pytest.Config) -> None:
    """Give stdout and stderr back, which a test's phase has captured."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if capture is not None:
        capture.suspend(in_=True)


def _end_children() -> None:
    """End the processes that multiprocessing ends with the interpreter, which does not get to it."""
    processes: Any = sys.modules.get("multiprocessing.process")
    for child in list(getattr(processes, "_children", ())):
        if child.daemon:
            child.terminate()

"""Check the tests of a run in a helper process: the engine, unchanged, in a thread. Loaded with the run's first message."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpuleak.adapters.host.modes import host_probes
from pytest_gpuleak.adapters.nvml.readings import framework_uuids
from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.child.messages import ClosedError, Lines
from pytest_gpuleak.engine.detect.counters import CounterWatch
from pytest_gpuleak.engine.run_tracker import RunTracker
from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
from pytest_gpuleak.engine.stages import Unguarded
from pytest_gpuleak.engine.subject import RerunResult, Subject
from pytest_gpuleak.heap.collector import PausedCollector
from pytest_gpuleak.model.outcomes import FixturePlace
from pytest_gpuleak.model.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpuleak.engine.fixture_check import FixtureCheck
    from pytest_gpuleak.engine.subject import FindingsSoFar
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.readings import Growth

NOT_TRACED = "a helper process is not traced"
"""Why no line is known that made what it holds."""


class Entry(Protocol):
    """The connection to the run: `child.hook.Entry`."""

    paused: bool

    def receive(self) -> bytes:
        """Wait for bytes of the run's."""

    def send(self, **message: Any) -> None:
        """Send a message."""

    def import_alone(self, load: Callable[[], Any]) -> Any:
        """Call a function that imports, while no other thread does."""


def serve(entry: Entry, root: str) -> None:
    """Answer the run until it ends. `root` is its rootdir."""
    with contextlib.suppress(ClosedError, OSError):
        agent = Agent(entry, root)
        try:
            while True:
                agent.answer(agent.receive())
        finally:
            agent.stop()


class Agent:
    """The check of this process."""

    def __init__(self, entry: Entry, root: str) -> None:
        self._entry = entry
        self._lines = Lines()
        self._messages: list[dict[str, Any]] = []
        self.send = entry.send
        guards = Unguarded()
        self._root = root
        self._given = self._policy = Policy(host=())
        frameworks = own_frameworks()
        self._tracker = RunTracker(frameworks, guards, CounterWatch((), ()))
        self._devices = CounterWatch(frameworks.devices, ())
        self._tracker.follow_memory_alone()
        self._tracker.start(self._policy)
        self._knowledge = SessionKnowledge(root, guards)
        self._knowledge.in_tests = False
        self._name = "MainProcess"
        self._in_test = False
        self._fixtures: FixtureCheck | None = None

    def receive(self) -> dict[str, Any]:
        """Wait for the next message. Raises ClosedError once the run has gone."""
        while not self._messages:
            data = self._entry.receive()
            if not data:
                raise ClosedError
            self._messages += self._lines.add(data)
        return self._messages.pop(0)

    def stop(self) -> None:
        """Restore the process as it was found."""
        self._tracker.stop()

    def answer(self, message: dict[str, Any]) -> None:
        """Do what the run asks for."""
        if message["op"] == "begin":
            if message["policy"] is not None:
                self._use(_policy_of(message["policy"]))
            self._tell_name()
            self._tracker.use(self._given)
            self._knowledge.begin_test(self._tracker)
            self._in_test = True
            self.send(op="begun", seq=message["seq"], faults=self._tracker.counters.faults)
        elif message["op"] == "end":
            self._end(message)
        elif message["op"] == "fixture":
            self.follow(message)
        elif message["op"] == "fixtures":
            records, fault = self._judge_fixtures()
            self.send(op="judged", seq=message["seq"], fixtures=records, fault=fault)
        elif message["op"] == "devices":
            self.send(op="devices", seq=message["seq"], devices=self._on_devices())

    def _use(self, policy: Policy) -> None:
        for probe in host_probes([name for name in policy.host if name not in self._given.host], self._root):
            self._tracker.counters.add_host(probe)
        # A run for the creating lines would show nothing (`NOT_TRACED`): what is allowed has none.
        self._given, self._policy = policy, policy._replace(allowed=NOT_TRACED)

    def _tell_name(self) -> None:
        """Tell what multiprocessing calls this process, which a parent that has its agent by the ``.pth`` does not pass on."""
        process = sys.modules.get("multiprocessing.process")
        name = self._name if process is None else process.current_process()._name  # noqa: SLF001 - the property may be a class of the user's
        if name != self._name:
            self._name = name
            self.send(op="named", name=str(name))

    def _end(self, message: dict[str, Any]) -> None:
        with contextlib.ExitStack() as paused:
            # An automatic collection would free cycles before they are read.
            self._entry.paused = gc.isenabled()
            paused.enter_context(PausedCollector())
            arrays, growth, suspected = self._look()
            count, size = len(arrays), growth.host
            judging = suspected and bool(message["judge"])
            seq = message["seq"]
            self.send(op="ended", seq=seq, suspect=suspected, judging=judging, arrays=count, heap=size)
            findings, fault = self._check(message, arrays, growth, paused) if judging else ((), "")
            arrays.clear()
        self._entry.paused = self._in_test = False
        self._tracker.end_test()
        if judging:
            self.send(op="judged", seq=seq, findings=[*map(_encode, findings)], fault=fault)

    def _on_devices(self) -> dict[str, int]:
        """Return the bytes that this process has taken from the driver, by the UUID of the device: its number may be another's."""
        sizes: dict[str, int] = {}
        for (device, metric), size in self._devices.read_devices().items():
            if metric == "reserved" or (metric == "allocated" and device not in sizes):
                sizes[device] = size
        return {
            uuid: sizes[f"cuda:{index}"]
            for index, uuid in enumerate(framework_uuids() or ())
            if f"cuda:{index}" in sizes
        }

    def follow(self, message: dict[str, Any]) -> None:
        """Keep a wider fixture's memory apart, as in pytest's process. The test has ended before the teardown that follows it."""
        tracker, fixture, event = self._tracker, message["fixture"], message["event"]
        if event == "setup_begins":
            tracker.setup_begins(fixture, FixturePlace(*message["place"]), _policy_of(message["policy"]))
        elif event == "setup_ends":
            tracker.setup_ends(fixture, 0.0, failed=message["failed"])
        elif event == "teardown_begins":
            if self._in_test:
                self._knowledge.teardown_begins(tracker, fixture)
        else:
            self._knowledge.teardown_ends(tracker, fixture, again=message["again"])
        self.send(op="followed", seq=message["seq"])

    def _judge_fixtures(self) -> tuple[list[dict[str, Any]], str]:
        """Return what fixtures that were torn down have left here so far, and what went wrong."""
        setups = self._tracker.take_released()
        try:  # as in `_check`
            if self._fixtures is None and any(setup.holds_memory() for setup in setups):
                self._entry.import_alone(_load_check)
                from pytest_gpuleak.engine.fixture_check import FixtureCheck

                self._fixtures = FixtureCheck(self._tracker, self._knowledge, lambda _: ())
            if self._fixtures is None:
                return [], ""
            self._fixtures.check(setups)
            records = self._fixtures.records
        except Exception as error:  # noqa: BLE001 - the run is told; the next test is checked
            return [], f"{type(error).__name__}: {error}"[:300].rstrip(": ")
        return [
            {
                "place": (one.name, one.scope, one.baseid, one.file, one.line),
                "findings": [*map(_encode, one.findings)],
            }
            for one in records
        ], ""

    def has_grown(self) -> bool:
        """Tell whether the re-run that is under way has left anything here so far."""
        grown = True  # where it cannot be told, as where it has: the re-run is judged
        with contextlib.suppress(Exception):
            arrays, _, grown = self._look()
            arrays.clear()
        return grown

    def _look(self) -> tuple[list[object], Growth, bool]:
        tracker, policy = self._tracker, self._policy
        growth = tracker.counters.end(lambda: tracker.least_host_growth(policy))
        arrays = tracker.left_arrays()
        suspected = bool(arrays)
        if tracker.is_worth_a_check(growth, policy):
            growth, suspected = tracker.own_growth(growth, policy, {}, suspected=suspected)
        return arrays, growth, suspected

    def _check(
        self, test: dict[str, Any], arrays: list[object], growth: Growth, paused: contextlib.ExitStack
    ) -> tuple[tuple[Finding, ...], str]:
        """Return the findings, and what went wrong."""
        try:  # what is imported may not be there: the process may have another root, or another user
            if "pytest_gpuleak.explain.explain" not in sys.modules:
                self._entry.import_alone(_load_check)
            from pytest_gpuleak.engine.subject import Suspect
            from pytest_gpuleak.engine.suspect import SuspectCheck
            from pytest_gpuleak.engine.suspect_evidence import FirstRun

            subject = ElsewhereSubject(self, test["nodeid"], test["seq"])
            check = SuspectCheck(Suspect(self._tracker, self._knowledge, subject, self._policy))
            return check.check(FirstRun(arrays, growth, seen=paused.close)), ""
        except Exception as error:  # noqa: BLE001 - the run is told; the next test is checked
            return (), f"{type(error).__name__}: {error}"[:300].rstrip(": ")


class ElsewhereSubject(Subject):
    """A test of the run: to run it again is to tell the run that this process is ready, and to wait.

    The settle hook and the fixtures are the run's.
    """

    counts_running_frames = True  # the loop of a server is one

    def __init__(self, agent: Agent, nodeid: str, seq: int) -> None:
        self._agent = agent
        self._seq = seq
        self._told: dict[str, Any] | None = None
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
        message, self._told = self._told, None
        if message is None or message["op"] == "again":
            self._agent.send(op="ready", seq=self._seq)
            message = self._await()
        return RerunResult(message["op"] == "ran" and bool(message["passed"]), str(message.get("why", "")))

    def confirming(self) -> AbstractContextManager[object]:
        """Wait until the re-run is about to begin: what goes with a wider fixture before it, the re-run did not let go."""
        self._agent.send(op="waits", seq=self._seq)
        self._told = self._await()
        return super().confirming()

    def _await(self) -> dict[str, Any]:
        """Return what the run tells of the re-run."""
        while (message := self._agent.receive())["op"] in ("look", "fixture"):
            if message["op"] == "fixture":
                self._agent.follow(message)
            else:
                self._agent.send(op="looked", seq=self._seq, grown=self._agent.has_grown())
        return message


def _load_check() -> None:
    """Import what the check of a suspect loads, its search for holders too, for which other threads wait once."""
    import pytest_gpuleak.engine.fixture_check
    import pytest_gpuleak.engine.suspect
    import pytest_gpuleak.explain.explain  # noqa: F401


def _policy_of(fields: dict[str, Any]) -> Policy:
    return Policy(**{**fields, "host": tuple(fields["host"])})


def _encode(found: Finding) -> dict[str, Any]:
    from pytest_gpuleak.model.finding_codec import encode_finding

    judged = found.judged
    if judged is not None and judged.why_no_line:
        judged = dataclasses.replace(judged, why_no_line=NOT_TRACED)
    why = None if found.why_line_unknown is None else NOT_TRACED
    return encode_finding(dataclasses.replace(found, why_line_unknown=why, judged=judged))

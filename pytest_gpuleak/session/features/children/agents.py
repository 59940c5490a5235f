"""Ask the agents before and after each test, and run suspects again for them."""

from __future__ import annotations

import dataclasses
import math
import os
import select
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpuleak.adapters.processes.facts import name_and_command
from pytest_gpuleak.child.messages import encode_policy
from pytest_gpuleak.engine.subject import RerunResult
from pytest_gpuleak.model.findings import HelperProcess
from pytest_gpuleak.model.version import __version__
from pytest_gpuleak.session.features.children.connection import is_running, read_finding
from pytest_gpuleak.session.features.children.patience import LOOK_S, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pytest_gpuleak.engine.detect.fixture_events import FixtureKey
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.session.features.children.connection import Connection
    from pytest_gpuleak.session.features.children.listener import Listener

OPTION = "--gpu-leak-children=agent"

# These three are seconds of the process's own (`Patience`): a verdict must not depend on what else the machine does.
ANSWER_S = 1.0
"""Seconds that an agent may take for an answer; a test for which it takes longer is not checked there."""

START_S = 15.0
"""Seconds, once, in which a process that runs must greet, and load the engine."""

JUDGE_S = 60.0
"""Seconds in which an agent must be ready for a re-run, or have judged: the search of a large heap takes some."""


MOST_FURTHER_RERUNS = 10
"""Re-runs that an agent may ask for beyond those that the policy has: the engine asks for few, a broken agent for any number."""


class Processes(Protocol):
    """Tells which processes wider fixtures have started: `engine.detect.processes.Children`."""

    def owned(self) -> Mapping[Any, FixtureKey]:
        """Return the processes of fixtures that are up, and their descendants, each with its fixture."""

    def name_of(self, fixture: FixtureKey) -> str:
        """Return the name of a fixture that is up."""


class Agents:
    """The helper processes of one run that have an agent."""

    def __init__(self, listener: Listener, processes: Processes, tell: Callable[[str], None]) -> None:
        self._listener = listener
        self._processes = processes
        self._tell = tell
        self._all: list[Connection] = []
        self._cut_off: list[Connection] = []
        self._told: set[int] = set()
        """The pids of processes that have greeted, or have been told to be silent."""
        self._seq = 0
        self._policy: Policy | None = None
        self._following = False
        self._suspects: list[Connection] = []
        self._findings: list[tuple[Connection, list[Any]]] = []
        self.unchecked: list[str] = []
        """Why the running test was not checked in a process: a clause for each."""
        leave = weakref.WeakMethod(self.leave)
        os.register_at_fork(after_in_child=lambda: _call(leave()))

    def begin(self, policy: Policy) -> None:
        """Begin a test in every process that has an agent."""
        self.unchecked, self._policy, self._following = [], policy, True
        for one in self._suspects:  # the run could not judge the last test
            one.late = True
        self._suspects, self._findings = [], []
        self._begin()
        self._tell_cut_off()

    def setup_ends(self, fixture: FixtureKey) -> None:
        """Take what the setup has made in other processes as the fixture's: the test begins anew there."""
        self._listener.expect(process.pid for process, owner in self._processes.owned().items() if owner == fixture)
        if self._following:
            self._begin()
        else:
            self._welcome()

    def teardown_begins(self, fixture: FixtureKey) -> None:
        """Tell which of the fixture's processes run Python and have had no agent, in one line: what leaks there is not found."""
        pids = [process.pid for process, owner in self._processes.owned().items() if owner == fixture]
        silent = [pid for pid in pids if pid not in self._told and self._listener.could_have_greeted(pid)]
        if silent:
            (name, _), more = name_and_command(silent[0]), f" and {len(silent) - 1} more" if silent[1:] else ""
            who = HelperProcess(silent[0], name, fixture=self._processes.name_of(fixture)).text
            self._tell(
                f"{who}{more}: not checked, no agent has come from there (another Python's, or started with -S?)"
            )

    def teardown_ends(self, fixture: FixtureKey) -> None:
        """Forget the fixture, whose key may be another's."""
        for one in self._all:
            if one.owner == fixture:
                one.owner = None

    def _begin(self) -> None:
        self._welcome()
        if not self._all or self._policy is None:
            return
        for one in self._all:
            one.begun = False
            if one.late:
                self._take_late(one)
        self._drop_ended()
        self._seq += 1
        asked = [one for one in self._all if not one.late]
        policies = {one: None if one.policy == self._policy else encode_policy(self._policy) for one in asked}
        messages = {one: {"op": "begin", "seq": self._seq, "policy": policy} for one, policy in policies.items()}
        new = not all(one.loaded for one in asked)
        for one in asked:
            one.policy = self._policy
        for one in self._ask(messages, START_S if new else ANSWER_S):
            one.begun = one.loaded = True

    def _take_late(self, late: Connection) -> None:
        """Read what a late agent answers by now; it is asked again once it waits for the next test."""
        for answer in late.answers():
            if answer.get("op") == "ready":
                late.send({"op": "drop", "why": "the run went on, since the process was late"})
            elif answer.get("op") != "ended" or not answer.get("judging"):
                late.late = False

    def _welcome(self) -> None:
        """Take new agents, and wait for those of processes that run and are known to greet."""
        patience = Patience(START_S)
        expected = self._listener.expected
        while True:
            self._all += self._listener.accept()
            for one in self._all:
                if one.process is None:
                    one.read()
                    self._greet(one)
            # A list of processes may be older than the greeting.
            self._find_owners([one for one in self._all if one.owner is None])
            known = {one.process.pid for one in self._all if one.process is not None}
            expected[:] = [pid for pid in expected if pid not in known and is_running(pid)]
            self._drop_ended()
            if not expected:
                return
            if patience.spent_on(expected).issuperset(expected):
                self._told.update(expected)
                for pid in expected:
                    self._tell(
                        f"pid {pid} is not checked: it has not greeted within {START_S:g} s, and none is waited for any more"
                    )
                self._listener.expect_none()
                return
            silent = [one for one in self._all if one.process is None]
            wait([self._listener, *silent], LOOK_S)  # a process may end without a greeting

    def _greet(self, new: Connection) -> None:
        if new.process is None:
            return
        self._told.add(new.process.pid)
        name, command = name_and_command(new.process.pid)
        new.process = dataclasses.replace(new.process, name=new.process.name or name, command=command)
        if new.version != __version__:
            new.end(
                new.refusal or f"it has pytest-gpuleak {new.version or 'of another release'}, the run {__version__}"
            )

    def _find_owners(self, connections: Sequence[Connection]) -> None:
        if not connections:
            return
        owners = {process.pid: owner for process, owner in self._processes.owned().items()}
        for one in connections:
            if one.process is not None and one.process.pid in owners:
                one.owner = owners[one.process.pid]
                one.process = dataclasses.replace(one.process, fixture=self._processes.name_of(one.owner))

    def _drop_ended(self) -> None:
        for one in self._all:
            if one.ended and one.why_ended:
                any_more = "" if one.policy is None else " any more"
                self._tell(f"{one.text} is not checked{any_more}: {one.why_ended}")
            elif one.ended and one.process is not None and not one.has_left:
                self._cut_off.append(one)  # it is ending, as a rule: what runs at the next test is not
        self._all = [one for one in self._all if not one.ended]

    def _tell_cut_off(self) -> None:
        """Tell of processes that run on without the connection: they have closed all descriptors, or become another program."""
        connected = {one.process.pid for one in self._all if one.process is not None}
        for one in self._cut_off:
            if one.process is not None and one.process.pid not in connected and is_running(one.process.pid):
                self._tell(f"{one.text} is not checked any more: it has closed its connection, or runs another program")
        self._cut_off = []

    def _ask(self, messages: Mapping[Connection, dict[str, Any]], seconds: float) -> dict[Connection, dict[str, Any]]:
        """Return the answers that come in time; who is late is not asked again before the answer has come."""
        waiting = [one for one, message in messages.items() if one.send(message)]
        answers = self._wait(waiting, seconds)
        for one in waiting:
            one.late = one not in answers and not one.ended
        self._drop_ended()
        return answers

    def _wait(self, waiting: Sequence[Connection], seconds: float) -> dict[Connection, dict[str, Any]]:
        """Return the first answer of each, of those that come within the time."""
        answers: dict[Connection, dict[str, Any]] = {}
        patience = Patience(seconds)
        silent = [*waiting]
        heard = [one for one in waiting if one.is_heard]  # of many, those alone that something has come of are read
        while True:
            for one in heard:
                answer = one.next_answer(self._seq)
                if answer is not None:
                    answers[one] = answer
            silent = [one for one in silent if one not in answers and not one.ended]
            if not silent:
                return answers
            spent = patience.spent_on(one.pid for one in silent)
            ready = wait(silent, 0.0 if spent else LOOK_S)
            heard = [one for one in silent if one.fileno() in ready]
            # One that has answered while this process itself was kept from running is heard.
            silent = [one for one in silent if one.pid not in spent or one.fileno() in ready]

    def _note_unanswered(self, one: Connection, why_late: str) -> None:
        """Note that a test was not checked in a process. What one had that has ended, for no reason of its agent's, is gone."""
        if one.late or one.why_ended:
            self._note_unchecked(one, why_late if one.late else one.why_ended)

    def _note_unchecked(self, one: Connection, why: str) -> None:
        clause = f"in {one.text}: {why}"
        if clause not in self.unchecked:
            self.unchecked.append(clause)

    def end(self, nodeid: str, judge: bool, used: Callable[[], Collection[FixtureKey]]) -> None:
        """End the test in each process. Those that it has left something in begin to judge it, if its verdict counts.

        A process of a fixture that the test does not use grows by itself, or late: that is told, and charged to nobody.
        """
        if not self._following:
            return
        self._following = False
        if not self._all:
            return
        fixtures = used()
        own = {one for one in self._all if one.owner is None or one.owner in fixtures}
        for one in own:
            if one.late:
                self._note_unchecked(one, f"it did not answer within {ANSWER_S:g} s")
        message = {"op": "end", "seq": self._seq, "nodeid": nodeid}
        begun = [one for one in self._all if one.begun and not one.late]
        answers = self._ask({one: {**message, "judge": judge and one in own} for one in begun}, ANSWER_S)
        for one in begun:
            answer = answers.get(one)
            if answer is None:
                if one in own:
                    self._note_unanswered(one, f"it did not answer within {ANSWER_S:g} s")
            elif answer.get("judging"):
                self._suspects.append(one)
            elif answer.get("suspect") and one not in own and not one.grew_alone:
                one.grew_alone = True
                self._tell(f"{one.text} grew in {nodeid}, which does not use its fixture: no test is blamed")

    def on_devices(self) -> dict[int, dict[str, int]]:
        """Return the bytes that each process which answers has taken from the driver, by its pid and the device's UUID."""
        self._welcome()
        asked = [one for one in self._all if not one.late]
        seconds = ANSWER_S if all(one.loaded for one in asked) else START_S
        message = {"op": "devices", "seq": self._seq}
        found: dict[int, dict[str, int]] = {}
        for one, answer in self._ask(dict.fromkeys(asked, message), seconds).items():
            one.loaded, sizes = True, answer.get("devices")
            if (
                one.process is not None
                and isinstance(sizes, dict)
                and all(type(size) is int for size in sizes.values())
            ):
                found[one.process.pid] = sizes
        return found

    def ready(self) -> list[Connection]:
        """Return the suspects that wait for a re-run; take the findings of those that have judged."""
        found: list[Connection] = []
        for one, answer in self._wait(self._suspects, JUDGE_S).items():
            self._suspects.remove(one)
            if answer.get("op") == "ready":
                found.append(one)
            else:
                self._take(one, answer)
        for one in self._suspects:
            one.late = not one.ended
            self._note_unanswered(one, f"it did not judge within {JUDGE_S:g} s")
            if one.ended and not one.why_ended:
                self._note_gone(one)
        self._suspects = []
        self._drop_ended()
        return found

    def ran(self, ready: list[Connection], result: RerunResult) -> None:
        """Tell those that were ready how the re-run went."""
        message = {"op": "ran", "passed": result.passed, "why": result.why}
        for one in ready:
            if one.send(message):
                self._suspects.append(one)
            else:
                self._note_gone(one)

    def _note_gone(self, one: Connection) -> None:
        """Tell of a process that has ended before a re-run could show whether it grows: what it had is gone with it."""
        self._tell(f"{one.text} had grown and ended before the test was run again, so it was not judged")

    def _take(self, one: Connection, answer: dict[str, Any]) -> None:
        findings, fault = answer.get("findings"), answer.get("fault")
        if isinstance(fault, str) and fault:
            self._note_unchecked(one, f"its check failed: {fault[:300]}")
        if isinstance(findings, list):
            self._findings.append((one, findings))

    def findings(self) -> tuple[Finding, ...]:
        """Return what was found, each with its process. A late agent's findings are those of an earlier test."""
        found: list[Finding] = []
        for one, data in self._findings:
            assert one.process is not None
            for each in data:
                try:
                    found.append(read_finding(each, one.process))
                except ValueError as error:
                    self._note_unchecked(one, f"what it found cannot be read: {error}")
        self._findings = []
        return tuple(found)

    def confirm(self, run_again: Callable[[], RerunResult]) -> tuple[Finding, ...]:
        """Run the test again as often as agents ask for it, and return what they have found."""
        wanted = 0 if self._policy is None else self._policy.confirm
        for _ in range(wanted + MOST_FURTHER_RERUNS):
            if not (ready := self.ready()):
                break
            self.ran(ready, run_again())
        else:
            self.ran(self.ready(), RerunResult(passed=False, why="it was run again too often"))
            self.ready()
        return self.findings()

    def drop(self) -> None:
        """End what agents have begun to judge: the test's teardown has failed since."""
        if self.has_judged:
            self.confirm(lambda: RerunResult(passed=False, why="the test did not pass"))

    @property
    def has_judged(self) -> bool:
        """Tell whether an agent has judged the test, or is about to."""
        return bool(self._suspects or self._findings)

    def leave(self) -> None:
        """Close a fork's copies of the connections, so that agents learn when the run ends."""
        self._listener.forget()
        self._end_all()

    def close(self) -> None:
        """End the agents, and restore the process."""
        self._end_all()
        self._listener.close()

    def _end_all(self) -> None:
        for one in self._all:
            one.end()
        self._all, self._following = [], False


def wait(opened: Sequence[Listener | Connection], seconds: float) -> set[int]:
    """Return the descriptors that can be read, by a poll: a run may have more descriptors than a select takes."""
    poller = select.poll()
    for one in opened:
        poller.register(one.fileno(), select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(math.ceil(seconds * 1000))}


def _call(function: Callable[[], None] | None) -> None:
    if function is not None:
        function()


def open_agents(root: str, processes: Processes, tell: Callable[[str], None]) -> Agents | None:
    """Let the processes of this run have agents; None where they cannot, which is told."""
    from pytest_gpuleak.session.features.children.listener import PTH, Listener, has_pth

    try:
        agents = Agents(Listener(root), processes, tell)
    except (AttributeError, ImportError, OSError) as error:  # Windows has no such sockets
        tell(f"{OPTION} has no effect: no socket can be made for it ({error})")
        return None
    if not has_pth():
        tell(f"{OPTION} reaches multiprocessing's processes alone: this installation (an editable one?) has no {PTH}")
    return agents

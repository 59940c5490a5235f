"""The run's side of the agents, with agents that these tests play."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from pytest_gpuleak.adapters.processes.usage import ProcessUse
from pytest_gpuleak.child import hook
from pytest_gpuleak.engine.subject import RerunResult
from pytest_gpuleak.model.finding_codec import encode_finding
from pytest_gpuleak.model.findings import Finding, HelperProcess
from pytest_gpuleak.model.outcomes import FixturePlace
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.model.version import __version__
from pytest_gpuleak.session.features.children import agents as agents_module
from pytest_gpuleak.session.features.children import connections as connections_module
from pytest_gpuleak.session.features.children import listener as listener_module
from pytest_gpuleak.session.features.children import patience as patience_module
from pytest_gpuleak.session.features.children.agents import Agents
from pytest_gpuleak.session.features.children.connection import Connection, read_finding
from pytest_gpuleak.session.features.children.listener import Listener, open_listener
from pytest_gpuleak.session.features.children.patience import LOOK_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="agents connect by a socket of POSIX systems")

SERVER, OTHER = 1, 2
PYTEST = [sys.executable, "-m", "pytest", "tests"]
"""The command line of this process, and of its forks."""

PLACE = FixturePlace("model", "class", "t.py", "t.py", 7)
FOUND = Finding("growing", True, "cpu", 1, 100, 100, "abc")


class Started(NamedTuple):
    pid: int


class Run:
    """Agents, what they have told, and the processes of fixtures."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.started: dict[Any, int] = {}
        self.young: list[Started] = []
        self.looked = 0
        self.agents_ = Agents(Listener("/root"), cast("Any", self), self.told.append)
        self.agents: list[FakeAgent] = []

    def test(self, *used: int) -> tuple[Finding, ...]:
        self.agents_.begin(Policy())
        return self.end(*used)

    def end(self, *used: int) -> tuple[Finding, ...]:
        self.agents_.end("t.py::test", True, lambda: used)
        found = self.agents_.confirm(lambda: RerunResult(passed=True))
        return found + self.agents_.confirm_in_new_fixtures(None, lambda: used)

    def owned(self) -> dict[Any, int]:
        self.looked += 1
        return self.started

    def is_older(self, process: Started) -> bool:
        return process not in self.young

    def name_of(self, fixture: int) -> str:
        return {SERVER: "server", OTHER: "other"}[fixture]

    def agent(self, answer: Callable[[dict[str, Any]], Any], **greeting: Any) -> FakeAgent:
        agent = FakeAgent(answer, greeting)
        self.agents.append(agent)
        return agent


class FakeAgent:
    """Answers each message by what `answer` returns of it: messages, or bytes as they are."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any], greeting: dict[str, Any]) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ[hook.ENV].split("\n")[0])
        self._answer = answer
        self.asked: list[str] = []
        self.send({"op": "hello", "pid": 7, "name": "Engine", "version": __version__, **greeting})
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def send(self, *messages: Any) -> None:
        for one in messages:
            self.socket.sendall(one if type(one) is bytes else json.dumps(one).encode() + b"\n")

    def _serve(self) -> None:
        with self.socket.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                self.asked.append(message["op"])
                answers = self._answer(message)
                if answers is None:
                    self.socket.shutdown(socket.SHUT_RDWR)
                    return
                self.send(*answers)

    def end(self) -> None:
        self.socket.close()
        self.thread.join(300)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(connections_module, "name_and_command", lambda _: ("python", "python -m engine"))
    for limit in ("ANSWER_S", "START_S", "JUDGE_S"):  # this machine may be slow: a test of a limit sets it
        monkeypatch.setattr(agents_module, limit, 300)
    run = Run()
    yield run
    run.agents_.close()
    for agent in run.agents:
        agent.end()


def well_behaved(message: dict[str, Any]) -> list[Any]:
    seq = message.get("seq")
    if message["op"] in ("begin", "fixture", "fixtures"):
        return [{"op": "begun", "seq": seq, "fixtures": []}]
    return [{"op": "ended", "seq": seq, "suspect": False, "judging": False}] if message["op"] == "end" else []


def growing(message: dict[str, Any], seq: int = 1) -> list[Any]:
    """Judge one test: the one that has this sequence number."""
    if message["op"] == "end" and message["judge"]:
        return [{"op": "ended", "seq": seq, "suspect": True, "judging": True}, {"op": "ready", "seq": seq}]
    if message["op"] == "end":
        return [{"op": "ended", "seq": message["seq"], "suspect": True, "judging": False}]
    if message["op"] == "ran":
        return [{"op": "judged", "seq": seq, "findings": [encode_finding(FOUND)], "fault": ""}]
    return well_behaved(message)


def test_a_suspect_is_run_again_and_its_finding_has_the_process(run: Run) -> None:
    agent = run.agent(growing)
    (found,) = run.test()
    assert (found.failed, found.process) == (True, HelperProcess(7, "Engine", "python -m engine"))
    assert (agent.asked, run.agents_.unchecked, run.told) == (["begin", "end", "ran"], [], [])


def test_a_process_of_a_fixture_that_the_test_does_not_use_is_not_judged(run: Run) -> None:
    run.agents_.begin(Policy())
    run.started[Started(7)] = SERVER
    agent = run.agent(growing)
    run.agents_.setup_ends(SERVER, failed=False, again=False)
    assert run.end(OTHER) == ()
    assert agent.asked == ["begin", "end"]
    assert run.told == [
        "Engine (pid 7, fixture 'server') grew in t.py::test, which does not use its fixture: no test is blamed"
    ]
    assert run.agents_.unchecked == []


def test_a_wider_fixture_is_told_where_the_test_or_its_rerun_is_followed(run: Run) -> None:
    def answer(message: dict[str, Any]) -> list[Any]:
        if message["op"] == "fixtures":
            records = [{"place": PLACE, "findings": [encode_finding(FOUND)]}]
            return [{"op": "judged", "seq": message["seq"], "fixtures": records, "fault": ""}]
        if message["op"] == "look":
            return [{"op": "looked", "seq": message["seq"], "grown": True}]
        return growing(message)

    first, second = run.agent(answer), run.agent(well_behaved, pid=8)
    agents = run.agents_

    def set_up_and_tear_down(*, again: bool) -> RerunResult:
        agents.setup_begins(OTHER, PLACE, Policy(), again=again)
        agents.setup_ends(OTHER, failed=False, again=again)
        agents.teardown_begins(OTHER, again=again)
        agents.teardown_ends(OTHER, again=again)
        return RerunResult(passed=True)

    agents.begin(Policy())
    set_up_and_tear_down(again=False)
    agents.end("t.py::test", True, lambda: ())
    agents.confirm(lambda: set_up_and_tear_down(again=True))
    assert agents.of_fixtures() == []
    agents.begin(Policy())  # now the processes are in no test
    events = ["fixture"] * 4
    assert first.asked == ["begin", *events, "end", *events, "look", "ran", "fixtures", "begin"]
    assert second.asked == ["begin", *events, "end", "begin", *events, "end", "fixtures", "begin"]
    agents.end("t.py::test", False, lambda: ())
    agents.begin(Policy())  # no fixture has been torn down since
    assert second.asked[-3:] == ["begin", "end", "begin"]
    ((place, _, (found,)),) = agents.of_fixtures()
    assert (place, found.process and found.process.pid) == (PLACE, 7)


@pytest.mark.parametrize(
    ("records", "fault"),
    [([], "MemoryError"), ([{"place": PLACE}], ""), ([{"place": [], "findings": []}], ""), (None, "")],
)
def test_what_fixtures_have_left_and_cannot_be_judged_is_told(run: Run, records: Any, fault: str) -> None:
    run.agent(lambda m: [{"seq": m["seq"], "op": "", "fixtures": records, "fault": fault}])
    run.test()
    run.agents_.teardown_ends(OTHER, again=False)
    run.test()
    (line,) = run.told
    assert line.startswith("what fixtures have left in Engine (pid 7) is not judged: ")
    assert fault in line
    assert run.agents_.of_fixtures() == []


def test_a_late_agent_is_waited_for_once_and_asked_again_when_it_has_answered(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_module, "ANSWER_S", 0.2)
    monkeypatch.setattr(patience_module, "read_use", lambda _: ProcessUse(1.0, wants=False))
    held = threading.Event()

    def late(message: dict[str, Any]) -> list[Any]:
        if message["op"] == "end":
            held.wait(300)
        return well_behaved(message)

    agent = run.agent(late)
    assert run.test() == ()
    assert run.agents_.unchecked == ["in Engine (pid 7): it did not answer within 0.2 s"]
    run.test()
    assert run.agents_.unchecked  # said again
    assert agent.asked == ["begin", "end"]  # but it was not asked
    held.set()
    monkeypatch.setattr(agents_module, "ANSWER_S", 300)
    while len(run.agents[0].asked) == 2:
        run.agents_.begin(Policy())
    run.end()
    assert run.agents_.unchecked == []


@pytest.mark.parametrize("goes_on", [True, False])
def test_one_that_the_machine_keeps_from_running_is_waited_for_and_not_for_ever(
    run: Run, monkeypatch: pytest.MonkeyPatch, *, goes_on: bool
) -> None:
    monkeypatch.setattr(agents_module, "ANSWER_S", 0.1)
    monkeypatch.setattr(patience_module, "HINDERED_S", 300 if goes_on else 0.3)
    runs, looks = threading.Event(), list[int]()

    def read(pid: int) -> ProcessUse:
        looks.append(pid)
        if goes_on and len(looks) * LOOK_S > 5 * agents_module.ANSWER_S:
            runs.set()
        return ProcessUse(1.0, wants=True)

    monkeypatch.setattr(patience_module, "read_use", read)

    def late(message: dict[str, Any]) -> list[Any]:
        if message["op"] == "end":
            runs.wait(600)
        return well_behaved(message)

    run.agent(late)
    assert run.test() == ()
    runs.set()
    assert run.agents_.unchecked == ([] if goes_on else ["in Engine (pid 7): it did not answer within 0.1 s"])
    assert set(looks) == {7}
    while run.agents_._connections.all[0].late:
        run.agents_.begin(Policy())


@pytest.mark.parametrize("runs", [True, False])
def test_a_process_that_runs_on_without_its_connection_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, *, runs: bool
) -> None:
    monkeypatch.setattr(connections_module, "has_ended", lambda _: not runs)
    run.agent(lambda message: well_behaved(message) if message["seq"] == 1 else None)
    assert run.test() == run.test() == run.test() == ()
    why = "it has closed its connection, or runs another program"
    assert run.told == [f"Engine (pid 7) is not checked any more: {why}"] * runs


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda _: [b"Traceback: printed by the process\n"], "something else writes to its connection"),
        (lambda _: [b"[1]\n"], "something else writes to its connection"),
        (lambda _: [{"op": "bye", "why": "it forks"}], "it forks"),
        (lambda _: [{"op": "bye", "why": ""}], ""),
    ],
)
def test_an_agent_that_ends_is_left_out_with_one_line(run: Run, answer: Any, told: str) -> None:
    run.agent(answer)
    assert run.test() == run.test() == ()
    assert run.told == ([f"Engine (pid 7) is not checked any more: {told}"] if told else [])
    assert run.agents_.unchecked == []


def test_one_that_has_said_why_it_ends_before_it_is_asked_again_is_told_with_it(run: Run) -> None:
    agent = run.agent(well_behaved)
    run.agents_.begin(Policy())
    agent.send({"op": "bye", "why": "it forks"})
    agent.socket.shutdown(socket.SHUT_RDWR)  # what the run sends now fails
    assert run.end() == ()
    assert run.told == ["Engine (pid 7) is not checked any more: it forks"]
    assert run.agents_.unchecked == ["in Engine (pid 7): it forks"]


def test_of_many_agents_each_is_read_when_it_has_answered(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [run.agent(well_behaved, pid=pid) for pid in range(100, 160)]
    run.agents_.begin(Policy())
    read, reads = Connection.read, list[Connection]()

    def note(one: Connection) -> list[dict[str, Any]]:
        reads.append(one)
        return read(one)

    monkeypatch.setattr(Connection, "read", note)
    run.looked = 0
    assert run.end() == run.test() == ()
    assert all(agent.asked == ["begin", "end"] * 2 for agent in many)
    assert len(reads) == 3 * len(many)
    assert run.looked == 1  # at the processes, for all of them


def test_the_policy_is_told_where_it_has_changed(run: Run) -> None:
    told: list[Any] = []

    def answer(message: dict[str, Any]) -> list[Any]:
        told.extend([message["policy"]] if message["op"] == "begin" else [])
        return well_behaved(message)

    run.agent(answer)
    other = Policy(confirm=3)
    for policy in (Policy(), Policy(), other, other, Policy()):
        run.agents_.begin(policy)
    assert [None if one is None else one["confirm"] for one in told] == [1, None, 3, None, 1]


def test_agents_tell_what_their_processes_have_on_devices(run: Run) -> None:
    said = {7: {"aa": 5}, 8: {"aa": "much"}, 9: [1], 10: None}

    def answer_of(pid: int) -> Callable[[dict[str, Any]], list[Any]]:
        def answer(message: dict[str, Any]) -> list[Any]:
            if message["op"] == "devices":
                return [{"op": "devices", "seq": message["seq"], "devices": said[pid]}]
            return well_behaved(message)

        return answer

    for pid in said:
        run.agent(answer_of(pid), pid=pid)
    assert run.agents_.on_devices() == {7: {"aa": 5}}  # also before the first test
    assert run.test() == ()
    assert run.agents_.on_devices() == {7: {"aa": 5}}


@pytest.mark.parametrize("op", ["end", "ran"])
@pytest.mark.parametrize("why", ["its check failed: MemoryError", ""])
def test_a_test_in_which_an_agent_ends_is_unchecked_where_the_process_has_not_ended(
    run: Run, op: str, why: str
) -> None:
    run.agent(lambda message: [{"op": "bye", "why": why}] if message["op"] == op else growing(message))
    assert run.test() == ()
    assert run.agents_.unchecked == ([f"in Engine (pid 7): {why}"] if why else [])
    gone = "Engine (pid 7) has ended before t.py::test was run again: what was left there is not judged"
    assert (gone in run.told) == (not why and op == "ran")
    assert run.test() == ()
    assert run.agents_.unchecked == []


@pytest.mark.parametrize("passes", [True, False])
def test_where_a_process_goes_with_its_fixture_the_one_of_a_re_run_is_judged(run: Run, passes: bool) -> None:
    run.agent(lambda message: [{"op": "bye", "why": ""}] if message["op"] == "ran" else growing(message))
    run.agents_.begin(Policy())
    run.agents_.end("t.py::test", True, tuple)
    assert run.agents_.confirm(lambda: RerunResult(passed=True)) == ()
    runs: list[bool] = []

    def run_again() -> RerunResult:
        if not runs:
            run.agent(functools.partial(growing, seq=2), pid=8)
            run.agents_.setup_ends(SERVER, failed=False, again=True)
        runs.append(passes)
        return RerunResult(passes)

    found = run.agents_.confirm_in_new_fixtures(run_again, tuple)
    assert [one.process.pid for one in found if one.process] == ([8] if passes else [])
    assert len(runs) == 1 + passes, "the first is compared with nothing"
    gone = "Engine (pid 7) has ended before t.py::test was run again: what was left there is not judged"
    assert (gone in run.told) is not passes


def test_what_agents_judge_is_dropped_where_a_teardown_fails(run: Run) -> None:
    told: list[dict[str, Any]] = []

    def answer(message: dict[str, Any]) -> list[Any]:
        told.append(message)
        return growing(message)

    run.agent(answer)
    run.agents_.begin(Policy())
    run.agents_.end("t.py::test", True, tuple)
    run.agents_.drop()
    assert (told[-1]["op"], told[-1]["passed"]) == ("ran", False)
    assert not run.agents_.has_judged


def test_an_agent_that_never_judges_is_not_served_for_ever(run: Run) -> None:
    agent = run.agent(lambda message: [{"op": "ready", "seq": 1}] if message["op"] == "ran" else growing(message))
    assert run.test() == ()
    assert agent.asked.count("ran") == Policy().confirm + agents_module.MOST_FURTHER_RERUNS + 1


def worker(*grown: bool, looks: bool = True) -> Callable[[dict[str, Any]], list[Any]]:
    """Answer as a worker that has `grown` in this run, and not in that. It judges by the last one; its `looks` tell of each."""
    runs, last = iter(grown), [False]

    def answer(message: dict[str, Any]) -> list[Any]:
        op, seq = message["op"], message.get("seq")
        if op == "end":
            last[:] = [judging] = [next(runs)]
            return [{"op": "ended", "seq": seq, "judging": judging}, *[{"op": "ready", "seq": seq}] * judging]
        if op == "look":
            last[:] = [next(runs)]
            return [{"op": "looked", "seq": seq, "grown": last[0]}] * looks
        if op == "ran":
            return [{"op": "judged", "seq": 1, "findings": [encode_finding(FOUND)] * last[0], "fault": ""}]
        return well_behaved(message)

    return answer


def test_a_worker_that_a_rerun_does_not_reach_waits_for_one_that_does(run: Run) -> None:
    run.started = {Started(7): SERVER, Started(8): SERVER, Started(9): OTHER}
    first = run.agent(worker(True, False, True))
    second = run.agent(worker(False, True, False), pid=8)
    others = run.agent(worker(False), pid=9)
    (found,) = run.test(SERVER)
    assert found.process is not None
    assert (found.process.pid, run.agents_.unchecked) == (7, [])
    assert first.asked == ["begin", "end", "look", "look", "ran"]
    assert second.asked == ["begin", "end", "begin", "end", "look", "ran"]
    assert others.asked == ["begin", "end"]


def test_a_counter_that_cannot_be_read_there_is_told_once(run: Run) -> None:
    fault = "heap not watched: OSError: no such file"
    for pid in (7, 8):
        run.agent(lambda m: [{**well_behaved(m)[0], "faults": [fault]}], pid=pid)
    assert run.test() == run.test() == ()
    (told,) = run.told
    assert told in (f"Engine (pid 7): {fault}", f"Engine (pid 8): {fault}")  # whichever answers first


def test_one_that_waits_is_told_when_the_rerun_begins(run: Run) -> None:
    def waiting(message: dict[str, Any]) -> list[Any]:
        if message["op"] == "end":
            return [{"op": "ended", "seq": 1, "suspect": True, "judging": True}, {"op": "waits", "seq": 1}]
        return [{"op": "ready", "seq": 1}] if message["op"] == "again" else growing(message)

    agent = run.agent(waiting)
    run.agents_.begin(Policy())
    run.agents_.end("t.py::test", True, lambda: ())
    run.agents_.await_suspects()
    assert agent.asked == ["begin", "end"]
    assert len(run.agents_.confirm(lambda: RerunResult(passed=True))) == 1
    assert agent.asked == ["begin", "end", "again", "ran"]


def test_what_each_worker_keeps_once_is_told_after_a_run_that_adds_nothing(run: Run) -> None:
    run.started = {Started(7): SERVER, Started(8): SERVER}
    first, second = run.agent(worker(True, False, False)), run.agent(worker(False, True, False), pid=8)
    assert run.test(SERVER) == ()
    assert (first.asked.count("look"), second.asked.count("look"), run.agents_.unchecked) == (2, 1, [])


def test_a_worker_that_does_not_tell_whether_it_was_reached_leaves_the_test_unchecked(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience_module, "read_use", lambda _: ProcessUse(1.0, wants=False))

    def run_again() -> RerunResult:
        monkeypatch.setattr(agents_module, "JUDGE_S", 0.2)
        return RerunResult(passed=True)

    run.started = {Started(7): SERVER, Started(8): SERVER}
    first, _ = run.agent(worker(True, False, looks=False)), run.agent(worker(False, False), pid=8)
    run.agents_.begin(Policy())
    run.agents_.end("t.py::test", True, lambda: (SERVER,))
    assert run.agents_.confirm(run_again) == ()
    assert run.agents_.unchecked == ["in Engine (pid 7, fixture 'server'): it did not answer within 0.2 s"]
    run.agents_.close()
    first.thread.join(300)  # it has read all
    assert first.asked == ["begin", "end", "look", "drop"]


def test_a_finding_that_is_none_leaves_the_test_unchecked(run: Run) -> None:
    run.agent(lambda message: [{"op": "judged", "seq": 1, "findings": [{"kind": "growing"}, 4]}] if message["op"] == "ran"
              else growing(message))  # fmt: skip
    assert run.test() == ()
    assert [why.partition("cannot be read")[1] for why in run.agents_.unchecked] == ["cannot be read"] * 2


@pytest.mark.parametrize(
    ("greeting", "told"),
    [
        ({"version": "0.0"}, f"it has pytest-gpuleak 0.0, the run {__version__}"),
        ({"version": "", "why": "pytest-gpuleak cannot be loaded there"}, "pytest-gpuleak cannot be loaded there"),
    ],
)
def test_a_process_without_this_version_is_told_once(run: Run, greeting: dict[str, Any], told: str) -> None:
    agent = run.agent(well_behaved, **greeting)
    assert run.test() == run.test() == ()
    assert [line.rpartition(": ")[2] for line in run.told] == [told]
    assert agent.asked == []


def test_a_process_that_runs_and_does_not_greet_is_waited_for_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_module, "START_S", 0.2)
    monkeypatch.setattr(patience_module, "read_use", lambda _: ProcessUse(1.0, wants=False))
    listener = run.agents_._connections._listener
    listener.expected.append(os.getpid())
    assert run.test() == ()
    assert run.told == [
        f"pid {os.getpid()} is not checked: it has not greeted within 0.2 s, and none is waited for any more"
    ]
    for how in ("multiprocessing.popen_fork", "loky.backend.popen_loky_posix"):
        process: Any = multiprocessing.Process()
        process._popen = type("Popen", (), {"__module__": how})()
        listener._expects = False
        assert not listener._is_entered(process)
        listener._expects = True
        assert listener._is_entered(process) is how.startswith("multi")


@pytest.mark.parametrize(
    ("command", "ours", "greets"),
    [
        ([sys.executable, "server.py", "-S"], True, True),
        ([sys.executable, "-I", "-X", "dev", "-m", "uvicorn"], True, True),
        ([sys.executable, "server.py"], False, False),
        ([sys.executable, "-S", "server.py"], True, False),
        ([sys.executable, "-IS", "server.py"], True, False),
        ([sys.executable, "-m", "pytest"], True, False),
        (PYTEST, False, True),  # a fork
        (["python", "server.py"], True, False),
        ([], True, False),
    ],
)
def test_of_subprocesss_processes_those_that_will_greet_are_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str], ours: bool, greets: bool
) -> None:
    monkeypatch.setattr(listener_module, "_is_users", lambda _: True)
    listener = run.agents_._connections._listener
    monkeypatch.setattr(listener, "_has_pth", True)
    monkeypatch.setattr(listener_module, "command_line", lambda pid: PYTEST if pid == os.getpid() else command)
    monkeypatch.setattr(listener_module, "environment_of", lambda _: dict(os.environ) if ours else {})
    listener.expect([4711])
    assert listener.expected == [4711] * greets


def test_a_process_amidst_exec_is_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience_module, "read_use", lambda _: ProcessUse(1.0, wants=False))
    monkeypatch.setattr(listener_module, "has_ended", lambda _: False)
    monkeypatch.setattr(listener_module, "_is_users", lambda _: True)
    monkeypatch.setattr(listener_module, "environment_of", lambda _: dict(os.environ))
    listener = run.agents_._connections._listener
    monkeypatch.setattr(listener, "_has_pth", True)
    seen: list[list[str]] = [[], [], [sys.executable, "server.py"]]
    monkeypatch.setattr(listener_module, "command_line", lambda pid: PYTEST if pid == os.getpid() else seen.pop(0))
    listener.expect([4711])
    assert (listener.expected, seen) == ([4711], [])
    monkeypatch.setattr(listener_module, "EXEC_S", 0.2)
    monkeypatch.setattr(listener_module, "command_line", lambda _: [])
    listener.expect([4712])  # which stays without a command
    assert listener.expected == [4711]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["/usr/bin/python3.9", "server.py"], True),
        ([sys.executable, "-S", "server.py"], True),
        (["redis-server"], False),
        ([sys.executable, "-m", "pytest"], False),
        (PYTEST, True),  # a fork that has closed all descriptors
        ([], False),  # it has ended
    ],
)
def test_processes_without_an_agent_are_told_before_their_end_in_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str], told: bool
) -> None:
    run.agents_.begin(Policy())
    run.started.update(dict.fromkeys(map(Started, (7, 8, 9, 11)), SERVER))
    run.young.append(Started(11))  # its agent may be on its way
    run.started[Started(10)] = OTHER
    monkeypatch.setattr(run.agents_._connections._listener, "_has_pth", True)
    monkeypatch.setattr(run.agents_._connections._listener, "_expects", False)
    monkeypatch.setattr(listener_module, "command_line", lambda pid: PYTEST if pid == os.getpid() else command)
    run.agent(well_behaved)  # pid 7's
    run.agents_.setup_ends(SERVER, failed=False, again=False)
    run.agents_.teardown_begins(SERVER, again=False)
    why = "not checked, no agent has come from there (another Python's, or started with -S?)"
    assert run.told == [f"python (pid 8, fixture 'server') and 1 more: {why}"] * told


def test_a_process_of_another_user_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listener_module._is_users(os.getpid())
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not listener_module._is_users(os.getpid()) or sys.platform != "linux"


@pytest.mark.parametrize("kind", ["retained", "unconfirmed", "cycle"])
def test_only_what_grows_fails(kind: Any) -> None:
    process = HelperProcess(7, "worker-12", "", None)
    kept = Finding(kind, True, "cpu", 1, 1 << 30, 0, "abc")
    assert not read_finding(encode_finding(kept), process).failed
    grown = read_finding(encode_finding(FOUND), process)
    assert grown.failed
    other = read_finding(encode_finding(FOUND), HelperProcess(8, "worker-3", "", None))
    assert grown.fingerprint == other.fingerprint != FOUND.fingerprint


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
    monkeypatch.setattr(listener_module, "_LONGEST", 80)
    return folder


def test_the_folder_is_the_users_alone_and_those_of_killed_runs_go(temporary: Path) -> None:
    dead, others = temporary / "gpuleak-run-4194399-x", temporary / "gpuleak-run-of-others"
    dead.mkdir()
    others.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead / "s"))
    listener = Listener("/root")
    (folder,) = set(temporary.iterdir()) - {others}
    assert folder.stat().st_mode & 0o777 == 0o700
    listener.close()
    listener.close()
    assert [*temporary.iterdir()] == [others]
    assert hook.ENV not in os.environ


def test_a_folder_with_too_long_a_name_is_not_used(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "_LONGEST", 3)
    listener = Listener("/root")
    assert os.environ[hook.ENV].startswith("/tmp/gpuleak-run-")
    assert [*temporary.iterdir()] == []
    listener.close()


def test_without_a_socket_nothing_is_watched_and_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    told: list[str] = []
    assert open_listener("/root", told.append) is None
    assert told == [
        "--gpu-leak-children=agent has no effect: no socket can be made for it ([Errno 13] Permission denied)"
    ]

"""Ask the agents before and after each test, and run suspects again for them."""

from __future__ import annotations

import collections
import os
import weakref
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.child.hook import start_in_fork
from pytest_gpuleak.engine.subject import RerunResult
from pytest_gpuleak.model.outcomes import FixturePlace
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.session.features.children.connection import read_finding
from pytest_gpuleak.session.features.children.connections import Connections

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pytest_gpuleak.engine.detect.processes import Children
    from pytest_gpuleak.engine.detect.protocol import FixtureKey
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.session.features.children.connection import Connection
    from pytest_gpuleak.session.features.children.listener import Listener

# These three are seconds of the process's own (`Patience`): a verdict must not depend on what else the machine does.
ANSWER_S = 1.0
"""Seconds that an agent may take for an answer; a test for which it takes longer is not checked there."""

START_S = 15.0
"""Seconds, once, in which a process that runs must greet, and load the engine."""

JUDGE_S = 60.0
"""Seconds in which an agent must be ready for a re-run, or have judged: the search of a large heap takes some."""


MOST_FURTHER_RERUNS = 10
"""Re-runs that an agent may ask for beyond those that the policy has: the engine asks for few, a broken agent for any number."""


_PASSED = RerunResult(passed=True)
_DROP = {"op": "drop", "why": "the run went on, since the process was late"}


class Agents:
    """The helper processes of one run that have an agent."""

    def __init__(self, listener: Listener, processes: Children, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._connections = Connections(listener, processes, tell)
        self._policy = Policy()
        self._following = False
        self._nodeid = ""
        self._suspects: list[Connection] = []
        self._beside: list[Connection] = []
        self._waiting: list[Connection] = []
        """Suspects that are ready for a re-run: the last one has not reached them, or there was none yet."""
        self._gone: list[Connection] = []
        """Suspects that have ended before a re-run could show whether they grow."""
        self._judged: dict[Connection, list[Finding]] = {}
        self._again: list[Connection] = []
        """Those in which the re-run that is under way is followed."""
        self._policies: dict[FixturePlace, Policy] = {}
        self._torn_down = False
        """Whether a wider fixture has been torn down since all processes were asked what such fixtures have left."""
        self._faults: list[object] = []
        """What cannot be read in a process, each once."""
        self._of_fixtures: dict[tuple[FixturePlace, int], list[Finding]] = {}
        self.unchecked: list[str] = []
        """Why the running test was not checked in a process: a clause for each."""
        self._processes = processes
        in_fork = weakref.WeakMethod(self.in_fork)
        os.register_at_fork(after_in_child=lambda: (function := in_fork()) and function())

    def begin(self, policy: Policy) -> None:
        """Begin a test in every process that has an agent."""
        self.unchecked, self._policy = [], policy
        for one in (*self._suspects, *self._waiting):  # the run could not judge the last test
            one.late = True
        for one in self._waiting:
            one.send(_DROP)
        self._suspects, self._waiting, self._gone, self._judged = [], [], [], {}
        self._judge_fixtures(self._connections.all)
        self._torn_down, self._following = False, True
        self._begin()
        self._connections.tell_cut_off()

    def setup_begins(self, fixture: FixtureKey, place: FixturePlace, policy: Policy, *, again: bool) -> None:
        """Take what the setup makes in other processes as the fixture's. `again`: in a re-run."""
        self._policies[place] = policy
        self._follow("setup_begins", fixture, again, place=place, policy=policy._asdict())

    def setup_ends(self, fixture: FixtureKey, *, failed: bool, again: bool) -> None:
        """Begin the test in the processes that the setup has started."""
        self._connections.expect(fixture)
        self._follow("setup_ends", fixture, again, failed=failed)
        self._connections.welcome(START_S)
        if self._following:
            self._begin_in_idle()

    def teardown_begins(self, fixture: FixtureKey, *, again: bool) -> None:
        """Let the fixture's processes judge what others have left there, and tell of those that have had no agent."""
        busy = (*self._suspects, *self._waiting, *self._again)
        self._judge_fixtures([one for one in self._connections.all if one.owner == fixture and one not in busy])
        self._connections.tell_silent(fixture)
        self._follow("teardown_begins", fixture, again)

    def teardown_ends(self, fixture: FixtureKey, *, again: bool) -> None:
        """Forget the fixture, whose key may be another's."""
        self._torn_down |= not again
        self._follow("teardown_ends", fixture, again)
        self._connections.disown(fixture)

    def _follow(self, event: str, fixture: FixtureKey, again: bool, **more: Any) -> None:
        """Tell of a wider fixture, so that what it makes in the processes is not taken for the test's."""
        message = {"op": "fixture", "event": event, "fixture": fixture, "again": again, **more}
        message["seq"] = self._connections.seq
        followed = self._again if again and not self._following else self._connections.all
        followers = [one for one in followed if one.begun and not one.late]
        answers = self._ask(dict.fromkeys(followers, message))
        for one in followers:
            one.begun = one in answers  # one that is late begins the test again, if it can

    def _judge_fixtures(self, asked: Sequence[Connection]) -> None:
        """Take what fixtures that were torn down have left in processes that are in no test."""
        if not self._torn_down or self._following:
            return
        message = {"op": "fixtures", "seq": self._connections.seq}
        answers = self._connections.ask({one: message for one in asked if one.begun and not one.late}, JUDGE_S)
        for one, answer in answers.items():
            assert one.process is not None
            fault = answer.get("fault")
            try:
                for record in answer["fixtures"]:
                    found = [read_finding(each, one.process) for each in record["findings"]]
                    self._of_fixtures[FixturePlace(*record["place"]), one.pid] = found
            except (KeyError, TypeError, ValueError) as error:
                fault = f"it cannot be read: {error}"
            if fault:
                self._tell(f"what fixtures have left in {one.text} is not judged: {fault}")

    def of_fixtures(self) -> list[tuple[FixturePlace, Policy, list[Finding]]]:
        """Return what wider fixtures have left in the processes, after their teardown."""
        return [
            (place, policy, found)
            for place, policy in self._policies.items()
            if (found := [one for (where, _), all_ in self._of_fixtures.items() if where == place for one in all_])
        ]

    def _begin(self) -> None:
        self._connections.welcome(START_S)
        for one in self._connections.all:
            one.begun = False
        self._connections.seq += 1
        self._begin_in_idle()

    def _begin_in_idle(self) -> None:
        """Begin the test in each process that does not follow it yet."""
        for one in self._connections.all:
            if one.late:
                self._take_late(one)
        self._connections.drop_ended()
        self._begin_in([one for one in self._connections.all if not (one.late or one.begun)])

    def _begin_in(self, asked: Sequence[Connection]) -> None:
        seq, policy, fields = self._connections.seq, self._policy, self._policy._asdict()
        messages = {
            one: {"op": "begin", "seq": seq, "policy": None if one.policy == policy else fields} for one in asked
        }
        for one in asked:
            one.begun, one.policy = False, policy
        for one, answer in self._ask(messages).items():
            one.begun = True
            faults = answer.get("faults")
            for fault in faults if isinstance(faults, list) else ():
                if fault not in self._faults:
                    self._faults.append(fault)
                    self._tell(f"{one.text}: {str(fault)[:300]}")

    def _ask(self, messages: dict[Connection, dict[str, Any]]) -> dict[Connection, dict[str, Any]]:
        """Return the answers to messages, the first of which may have an agent load the engine."""
        answers = self._connections.ask(messages, ANSWER_S if all(one.loaded for one in messages) else START_S)
        for one in answers:
            one.loaded = True
        return answers

    def _take_late(self, late: Connection) -> None:
        """Read what a late agent answers by now; it is asked again once it waits for the next test."""
        for answer in late.answers():
            if answer.get("op") in ("ready", "waits"):
                late.send(_DROP)
            elif answer.get("op") != "looked" and not answer.get("judging"):
                late.late = False

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
        self._following, self._nodeid = False, nodeid
        if not self._connections.all:
            return
        fixtures = used()
        own = {one for one in self._connections.all if one.owner is None or one.owner in fixtures}
        for one in own:
            if one.late:
                self._note_unchecked(one, f"it did not answer within {ANSWER_S:g} s")
        message = {"op": "end", "seq": self._connections.seq, "nodeid": nodeid}
        begun = [one for one in self._connections.all if one.begun and not one.late]
        answers = self._connections.ask({one: {**message, "judge": judge and one in own} for one in begun}, ANSWER_S)
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

    def await_suspects(self) -> None:
        """Wait until the suspects have judged, or are ready for a re-run: the teardown that begins may end their processes."""
        self._waiting += self._take_answers()

    def on_devices(self) -> dict[int, dict[str, int]]:
        """Return the bytes that each process which answers has taken from the driver, by its pid and the device's UUID."""
        self._connections.welcome(START_S)
        message = {"op": "devices", "seq": self._connections.seq}
        found: dict[int, dict[str, int]] = {}
        for one, answer in self._ask({one: message for one in self._connections.all if not one.late}).items():
            sizes = answer.get("devices")
            if isinstance(sizes, dict) and all(type(size) is int for size in sizes.values()):
                found[one.pid] = sizes
        return found

    def ready(self) -> list[Connection]:
        """Return the suspects that wait for a re-run, and begin it in the other workers of their fixtures.

        Those that have judged are asked no more, nor are their fellows that wait, once one has been found to grow.
        """
        found, self._waiting = [one for one in self._waiting if not self._is_gone(one)], []
        while True:
            found += self._take_answers()
            grown = {one.owner for one, findings in self._judged.items() if any(each.failed for each in findings)}
            if told := [one for one in found if one.owner in grown]:
                self._tell_ran(told, _PASSED)
            elif told := [one for one in found if one.waits]:
                self._tell_suspects(told, {"op": "again"})
            else:
                break
            found = [one for one in found if one not in told]
        fixtures = {one.owner for one in found}
        others = [one for one in self._connections.all if one.owner in fixtures and not one.late]
        self._beside = [one for one in others if one not in found and one not in self._judged]
        if self._beside:
            self._begin_in(self._beside)
        self._again = [*found, *self._beside]
        return found

    def _take_answers(self) -> list[Connection]:
        """Return the suspects that are ready for a re-run; take the findings of the others."""
        found: list[Connection] = []
        for one, answer in self._connections.wait(self._suspects, JUDGE_S).items():
            self._suspects.remove(one)
            if answer.get("op") in ("ready", "waits"):
                one.waits = answer["op"] == "waits"
                found.append(one)
            else:
                self._take(one, answer)
        for one in self._suspects:
            one.late = not one.ended
            if not self._is_gone(one):
                self._note_unchecked(one, f"it did not judge within {JUDGE_S:g} s")
        self._suspects = []
        self._connections.drop_ended()
        return found

    def ran(self, ready: list[Connection], result: RerunResult) -> None:
        """Tell those that were ready how the re-run went. Those that it has not reached, but a fellow, wait for another."""
        self._again = []
        missed = self._missed(ready) if result.passed else []
        self._tell_ran([one for one in ready if one not in missed], result)
        self._waiting += [one for one in missed if not one.ended]

    def _tell_ran(self, ready: Sequence[Connection], result: RerunResult) -> None:
        self._tell_suspects(ready, {"op": "ran", "passed": result.passed, "why": result.why})

    def _tell_suspects(self, ready: Sequence[Connection], message: dict[str, Any]) -> None:
        for one in ready:
            if one.late:
                self._note_unanswered(one, f"it did not answer within {JUDGE_S:g} s")
                one.send(_DROP)
            elif one.send(message):
                self._suspects.append(one)
            else:
                self._gone.append(one)

    def _missed(self, ready: Sequence[Connection]) -> list[Connection]:
        """Return the suspects in which the re-run has left nothing, while it has in a fellow, which is a suspect from now on.

        Of workers that share a port or a queue any one answers. Each such re-run leaves one with more, so that one is
        reached twice in as many runs as there are workers and one more.
        """
        beside = [one for one in self._beside if one.begun and not one.ended]
        fellows = collections.Counter(one.owner for one in (*beside, *ready))
        looking = [one for one in ready if fellows[one.owner] > 1]
        end = {"op": "end", "seq": self._connections.seq, "nodeid": self._nodeid, "judge": True}
        look = {"op": "look", "seq": self._connections.seq}
        answers = (
            self._connections.ask({**dict.fromkeys(beside, end), **dict.fromkeys(looking, look)}, JUDGE_S)
            if looking
            else {}
        )
        joined = [one for one in beside if answers.get(one, {}).get("judging")]
        self._suspects += joined
        reached = [*joined, *(one for one in looking if answers.get(one, {}).get("grown", True))]
        fixtures = {one.owner for one in reached}
        return [one for one in looking if one.owner in fixtures and one not in reached]

    def _is_gone(self, one: Connection) -> bool:
        """Tell whether a suspect has ended, and note it. One that is ready says nothing: all that can be read is its end."""
        if not one.late:
            one.answers()
        if one.ended and one.why_ended:
            self._note_unchecked(one, one.why_ended)
        elif one.ended:
            self._gone.append(one)
        return one.ended

    def _take(self, one: Connection, answer: dict[str, Any]) -> None:
        assert one.process is not None
        found, findings, fault = [], answer.get("findings"), answer.get("fault")
        if isinstance(fault, str) and fault:
            self._note_unchecked(one, f"its check failed: {fault[:300]}")
        for each in findings if isinstance(findings, list) else ():
            try:
                found.append(read_finding(each, one.process))
            except ValueError as error:
                self._note_unchecked(one, f"what it found cannot be read: {error}")
        self._judged[one] = found

    def confirm(self, run_again: Callable[[], RerunResult]) -> tuple[Finding, ...]:
        """Run the test again as often as agents ask for it, and return what they have found."""
        others = len(self._connections.all) - 1  # each may be the worker that a re-run has reached instead
        for _ in range(self._policy.confirm + others + MOST_FURTHER_RERUNS):
            if not (ready := self.ready()):
                break
            self.ran(ready, run_again())
        else:
            self.ran(self.ready(), RerunResult(passed=False, why="it was run again too often"))
            self.ready()
        found = tuple(each for findings in self._judged.values() for each in findings)
        self._judged = {}
        return found

    def confirm_in_new_fixtures(
        self, run_again: Callable[[], RerunResult] | None, used: Callable[[], Collection[FixtureKey]]
    ) -> tuple[Finding, ...]:
        """Return what the test leaves in processes that re-runs start, where those of the first run have gone with their fixtures.

        `run_again` leaves the wider fixtures set up; None: it has ended none. A process that has gone for good is told.
        """
        gone, self._gone = self._gone, []
        found: tuple[Finding, ...] = ()
        if gone and run_again is not None:
            unchecked = self.unchecked
            self.begin(self._policy)
            result = run_again()
            self.end(self._nodeid, result.passed, used)
            found = self.confirm(run_again)
            self.unchecked = [*unchecked, *self.unchecked]
            gone, self._gone = self._gone if result.passed else gone, []
        for one in gone:  # what it had is gone with it, be it growth or a state
            self._tell(f"{one.text} has ended before {self._nodeid} was run again: what was left there is not judged")
        return found

    def drop(self) -> None:
        """End what agents have begun to judge: the test's teardown has failed since."""
        if self.has_judged:
            self.confirm(lambda: RerunResult(passed=False, why="the test did not pass"))

    @property
    def has_judged(self) -> bool:
        """Tell whether an agent has judged the test, or is about to."""
        return bool(self._suspects or self._waiting or self._judged)

    def in_fork(self) -> None:
        """Close a fork's copies of the connections, so that agents learn when the run ends; a fixture's fork has its own."""
        self._following = False
        self._connections.leave()
        if self._processes.in_setup:
            start_in_fork()

    def close(self) -> None:
        """End the agents, and restore the process."""
        self._following = False
        self._connections.close()

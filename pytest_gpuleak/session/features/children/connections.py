"""The connections to all agents of a run: who greets, who owns the process, what is asked of them."""

from __future__ import annotations

import dataclasses
import math
import select
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.processes.facts import has_ended, name_and_command
from pytest_gpuleak.model.findings import HelperProcess
from pytest_gpuleak.model.version import __version__
from pytest_gpuleak.session.features.children.patience import LOOK_S, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuleak.engine.detect.processes import Children
    from pytest_gpuleak.engine.detect.protocol import FixtureKey
    from pytest_gpuleak.session.features.children.connection import Connection
    from pytest_gpuleak.session.features.children.listener import Listener


class Connections:
    """The connections that are open. `tell` takes a line for the user."""

    def __init__(self, listener: Listener, processes: Children, tell: Callable[[str], None]) -> None:
        self._listener = listener
        self._processes = processes
        self._tell = tell
        self._cut_off: list[Connection] = []
        self.all: list[Connection] = []
        self._told: set[int] = set()
        """The pids of processes that have greeted, or have been told to be silent."""
        self.seq = 0
        """The number of the test that is asked about."""

    def welcome(self, seconds: float) -> None:
        """Take new agents, and wait for those of processes that run and are known to greet."""
        patience = Patience(seconds)
        expected = self._listener.expected
        while True:
            self.all += self._listener.accept()
            for one in self.all:
                if one.process is None:
                    one.read()
                    self._greet(one)
            # A list of processes may be older than the greeting.
            self._find_owners([one for one in self.all if one.owner is None])
            known = {one.pid for one in self.all}
            expected[:] = [pid for pid in expected if pid not in known and not has_ended(pid)]
            self.drop_ended()
            if not expected:
                return
            if patience.spent_on(expected).issuperset(expected):
                self._told.update(expected)
                for pid in expected:
                    self._tell(
                        f"pid {pid} is not checked: it has not greeted within {seconds:g} s, and none is waited for any more"
                    )
                self._listener.expect_none()
                return
            silent = [one for one in self.all if one.process is None]
            wait([self._listener, *silent], LOOK_S)  # a process may end without a greeting

    def expect(self, fixture: FixtureKey) -> None:
        """Expect a greeting of the processes that a fixture's setup has started."""
        self._listener.expect(process.pid for process, owner in self._processes.owned().items() if owner == fixture)

    def tell_silent(self, fixture: FixtureKey) -> None:
        """Tell which of the fixture's processes run Python and have had no agent, in one line: what leaks there is not found.

        The agent of one that has started in the test may not have been met yet.
        """
        known = self._told.union(one.pid for one in self.all)
        silent = [
            process.pid
            for process, owner in self._processes.owned().items()
            if owner == fixture and process.pid not in known
            if self._processes.is_older(process) and self._listener.could_have_greeted(process.pid)
        ]
        if silent:
            (name, _), more = name_and_command(silent[0]), f" and {len(silent) - 1} more" if silent[1:] else ""
            who = HelperProcess(silent[0], name, fixture=self._processes.name_of(fixture)).text
            self._tell(
                f"{who}{more}: not checked, no agent has come from there (another Python's, or started with -S?)"
            )

    def disown(self, fixture: FixtureKey) -> None:
        """Forget the fixture, whose key may be another's."""
        for one in self.all:
            if one.owner == fixture:
                one.owner = None

    def leave(self) -> None:
        """Close a fork's copies."""
        self._listener.forget()
        self._end_all()

    def close(self) -> None:
        """End the agents, and restore the process."""
        self._end_all()
        self._listener.close()

    def _end_all(self) -> None:
        for one in self.all:
            one.end()
        self.all = []

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
            if one.process is not None and one.pid in owners:
                one.owner = owners[one.pid]
                one.process = dataclasses.replace(one.process, fixture=self._processes.name_of(one.owner))

    def drop_ended(self) -> None:
        """Forget those that have ended, and tell why."""
        for one in self.all:
            if one.ended and one.why_ended:
                any_more = "" if one.policy is None else " any more"
                self._tell(f"{one.text} is not checked{any_more}: {one.why_ended}")
            elif one.ended and not one.loaded:
                self._told.discard(one.pid)  # a fork that has become another program, as a rule
            elif one.ended and not one.has_left:
                self._cut_off.append(one)  # it is ending, as a rule: what runs at the next test is not
        self.all = [one for one in self.all if not one.ended]

    def tell_cut_off(self) -> None:
        """Tell of processes that run on without the connection: they have closed all descriptors, or become another program."""
        connected = {one.pid for one in self.all}
        for one in self._cut_off:
            if one.pid not in connected and not has_ended(one.pid):
                self._tell(f"{one.text} is not checked any more: it has closed its connection, or runs another program")
        self._cut_off = []

    def ask(self, messages: Mapping[Connection, dict[str, Any]], seconds: float) -> dict[Connection, dict[str, Any]]:
        """Return the answers that come in time; who is late is not asked again before the answer has come."""
        waiting = [one for one, message in messages.items() if one.send(message)]
        answers = self.wait(waiting, seconds)
        for one in waiting:
            one.late = one not in answers and not one.ended
        self.drop_ended()
        return answers

    def wait(self, waiting: Sequence[Connection], seconds: float) -> dict[Connection, dict[str, Any]]:
        """Return the first answer of each, of those that come within the time."""
        answers: dict[Connection, dict[str, Any]] = {}
        patience = Patience(seconds)
        silent = [*waiting]
        heard = [one for one in waiting if one.is_heard]  # of many, those alone that something has come of are read
        while True:
            for one in heard:
                answer = one.next_answer(self.seq)
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


def wait(opened: Sequence[Listener | Connection], seconds: float) -> set[int]:
    """Return the descriptors that can be read, by a poll: a run may have more descriptors than a select takes."""
    poller = select.poll()
    for one in opened:
        poller.register(one.fileno(), select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(math.ceil(seconds * 1000))}

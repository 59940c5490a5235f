"""One agent, as the run sees it, and what it has found."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.child.messages import Lines
from pytest_gpuleak.model.findings import Finding, HelperProcess
from pytest_gpuleak.model.fingerprint import FINGERPRINT_DIGITS, digest_of
from pytest_gpuleak.model.text import clean_text, shorten_end

if TYPE_CHECKING:
    import socket

    from pytest_gpuleak.model.policy import Policy

NAME_LIMIT = 80
TEXT_LIMIT = 200

_AT_ONCE = 1 << 16
"""Bytes that are read by one call."""


class Connection:
    """The connection to the agent of a process. Its socket never makes the run wait."""

    def __init__(self, opened: socket.socket) -> None:
        opened.setblocking(False)
        self._socket = opened
        self._lines = Lines()
        self._inbox: list[dict[str, Any]] = []
        self.process: HelperProcess | None = None
        """Who it is; None until it has greeted."""
        self.version = ""
        self.refusal = ""
        """Why the process can have no agent, in its own words."""
        self.owner: int | None = None
        """The key of the wider fixture that has started the process."""
        self.why_ended = ""
        """Why the agent can be asked no more; empty where the process has just gone."""
        self.ended = False
        self.has_left = False
        """Whether the agent has said that it ends."""
        self.begun = False
        """Whether it follows the running test."""
        self.waits = False
        """Whether it waits to be told that the test is run again."""
        self.loaded = False
        self.grew_alone = False
        """Whether it was told that the process grows in tests that do not use its fixture."""
        self.policy: Policy | None = None
        """What the agent judges by."""
        self.late = False
        """Whether an answer is due for longer than a run waits."""

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        """Return the pid of the process; 0 until it has greeted."""
        return 0 if self.process is None else self.process.pid

    @property
    def text(self) -> str:
        """Name the process."""
        return "a process that has not greeted" if self.process is None else self.process.text

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message, and return whether that went."""
        if not self.ended:
            try:
                # Small: it fits the buffer, unless the process has not read for long.
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except BlockingIOError:
                self.end("it reads no messages")
            except OSError:
                self._inbox += self.read()  # it may have said why it ends
                self.end()
        return not self.ended

    def read(self) -> list[dict[str, Any]]:
        """Return the messages that have come. What is no message ends the connection."""
        messages: list[dict[str, Any]] = []
        if self.ended:
            return messages
        try:
            size = _AT_ONCE
            while size == _AT_ONCE:  # less was all
                data = self._socket.recv(_AT_ONCE)
                size = len(data)
                messages += self._lines.add(data)
            if not size:
                self.end()
        except BlockingIOError:
            pass
        except OSError:
            self.end()
        except (ValueError, RecursionError):
            self.end("something else writes to its connection")
        return [message for message in messages if not self._takes(message)]

    def next_answer(self, seq: int) -> dict[str, Any] | None:
        """Return the next answer on a test, of those that have come. An agent may be ready as soon as it has ended one."""
        self._inbox += self.read()
        while self._inbox:
            answer = self._inbox.pop(0)
            if answer.get("seq") == seq:
                return answer
        return None

    @property
    def is_heard(self) -> bool:
        """Tell whether an answer has been read that was not returned yet."""
        return bool(self._inbox)

    def answers(self) -> list[dict[str, Any]]:
        """Return all answers that have come."""
        found, self._inbox = self._inbox + self.read(), []
        return found

    def _takes(self, message: dict[str, Any]) -> bool:
        """Tell whether a message was about the process itself."""
        op, name = message.get("op"), _text(message.get("name"), NAME_LIMIT)
        if op == "hello":
            pid = message.get("pid")
            self.version, self.refusal = _text(message.get("version"), 40), _text(message.get("why"), TEXT_LIMIT)
            self.process = HelperProcess(pid if type(pid) is int else 0, name)
        elif op == "named" and self.process is not None and name:
            self.process = dataclasses.replace(self.process, name=name)
        elif op == "bye":
            self.has_left = True
            self.end(_text(message.get("why"), TEXT_LIMIT))
        return op in ("hello", "named", "bye")

    def end(self, why: str = "") -> None:
        """Ask the agent no more."""
        self.ended, self.why_ended = True, self.why_ended or why
        with suppress(OSError):
            self._socket.close()


def _text(value: object, limit: int) -> str:
    return shorten_end(clean_text(value, limit), limit) if isinstance(value, str) else ""


def read_finding(data: object, process: HelperProcess) -> Finding:
    """Return a finding made in a helper process. Raises ValueError for what is none.

    Only what grows with each run fails: what a server keeps once is its cache, and what it replaces is its state.
    """
    from pytest_gpuleak.reports.json.validate import check

    found: Finding = check(Finding, data, "finding")
    grows = found.kind == "growing" or found.bytes_per_run > 0
    return dataclasses.replace(
        found,
        failed=found.failed and grows,
        known=False,
        baseline=None,
        fingerprint=_fingerprint(found.fingerprint, process),
        process=process,
    )


def _fingerprint(digest: str, process: HelperProcess) -> str:
    """Return a fingerprint that tells the test's own leak from a helper's, without pids and other numbers."""
    who = process.fixture or re.sub(r"\d+", "#", process.name)
    return digest_of(digest, "process", who, digits=FINGERPRINT_DIGITS)

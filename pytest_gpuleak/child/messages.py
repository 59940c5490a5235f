"""Messages between a run and an agent: JSON objects, a line each.

The run asks ``begin`` (a test, by a policy; null: that of the last one), ``end``, and tells ``ran`` after each re-run, or ``drop`` where there is none.
Where the re-run may have reached another worker, it asks by ``look`` first whether it has left anything: ``looked``.
What wider fixtures do it tells by ``fixture`` (an event of `FixtureEvents`; `again`: in a re-run): ``followed``; between tests it asks
what those that were torn down have left, by ``fixtures``: ``judged``.
The agent greets with ``hello``, and answers ``begun``, ``ended``, then for a suspect ``waits`` until it is told that the test is run
``again``, ``ready`` before each re-run and
``judged`` at last. Between tests the run may ask what it has on ``devices``. ``seq`` tells the tests apart: what a late agent answers belongs to an earlier one.
"""

from __future__ import annotations

import json
from typing import Any

MOST_BYTES = 1 << 24
"""Bytes of a message that are read: a process that prints into the connection must not fill the memory."""


class ClosedError(BaseException):
    """The other side has gone. No `Exception`, which a guard of the engine's would take for a fault of a stage."""


class Lines:
    """Take messages out of the bytes that arrive."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> list[dict[str, Any]]:
        """Return the messages that are complete by now. Raises ValueError for what is none."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_BYTES:
            raise ValueError("a message without an end")
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a line that is no message")
        return messages

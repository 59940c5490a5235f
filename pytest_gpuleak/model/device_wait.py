"""What `--gpu-leak-wait` has seen on the devices after one test: how long was waited, and what stayed. No verdict."""

from typing import Literal, NamedTuple

# No postponed annotations: `outcomes.TestRecord` names these types, and a run without the option never loads them.
Cause = Literal["this process", "process", "driver", "unknown", "foreign"]
"""Who has the memory: an object in this process, a process of this run that is alive, no process any more, a process that
cannot be told (the driver's pids are not ours), or processes that are not of this run."""


class Occupied(NamedTuple):
    """Memory on one device that one cause occupies after a test; for ``foreign``, before it.

    Attributes:
        bytes: bytes that are occupied. Of ``this process``, those of the test's findings.
        pid: the process, where one is listed; for ``driver``, one that has ended and that the driver still lists.
        command: the process's command line, cleaned and cut; empty if it cannot be read.
        started_by: the test's nodeid or the fixture that started the process; empty if unknown.
        why: what is known beyond the cause; for ``unknown``, why no process can be told.
    """

    device: str
    cause: Cause
    bytes: int
    pid: int | None = None
    command: str = ""
    started_by: str = ""
    why: str = ""


class DeviceWait(NamedTuple):
    """The wait after a test: seconds, and what was still occupied at its end."""

    waited_s: float
    occupied: tuple[Occupied, ...] = ()

"""What was seen on devices, as plain data: what `--gpu-leak-wait` waited for and what stayed, and a device that was lost."""

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


class LostDevice(NamedTuple):
    """A device that was lost by an error that CUDA calls sticky: each later call of the process raises it again.

    Attributes:
        device: its name, such as ``cuda:0``.
        error: the error's first line.
        nodeid: the test at which the first call failed. Kernels run beside the host, so an earlier test may have started
            the one that failed, if it did not wait for the device.
        moment: whether that call was made ``before`` the test or ``during`` it.
        last_answered: nodeid of the last test after which the device answered; None: it was asked after no test before.
        worker: the xdist worker whose process it is, or ``main``.
    """

    device: str
    error: str
    nodeid: str
    moment: Literal["before", "during"]
    last_answered: str | None
    worker: str

    @property
    def reason(self) -> str:
        """Say why the tests from this one on are unchecked."""
        return f"{self.device} stopped answering {self.moment} {self.nodeid} ({self.error})"

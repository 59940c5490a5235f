"""A device that answers no call of its process any more, as plain data."""

from __future__ import annotations

from typing import Literal, NamedTuple


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

"""What a test's peaks are, as plain data."""

from __future__ import annotations

from typing import NamedTuple


class Peak(NamedTuple):
    """How far one counter of one device rose during a test. All in bytes.

    Attributes:
        before: what it stood at before the test, and what wider fixtures that were set up meanwhile have added to it.
        own: by how much it exceeded that, their setups left out: what the test itself added at its height.
        total: the most it stood at, whoever added it.
        exact: whether the framework counts peaks; if not, `own` and `total` are the most that was seen, no more.
    """

    before: int
    own: int
    total: int
    exact: bool = True


class DevicePeak(NamedTuple):
    """One device's peaks during a test.

    Attributes:
        allocated: of blocks handed out.
        reserved: of memory taken from the driver; None where it is not counted.
    """

    allocated: Peak
    reserved: Peak | None = None

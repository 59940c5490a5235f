"""Peaks of a test, as plain data."""

from __future__ import annotations

from typing import NamedTuple


class Peak(NamedTuple):
    """How far one counter of one device rose during a test, in bytes.

    Attributes:
        before: the value before the test, plus what higher-scoped fixtures added during it.
        own: the peak above `before`, setups of higher-scoped fixtures left out; `total` has all.
        exact: whether the framework counts peaks. If not, these are the highest values that were read.
    """

    before: int
    own: int
    total: int
    exact: bool = True


class DevicePeak(NamedTuple):
    """One device's peaks during a test. `reserved` is None where it is not counted."""

    allocated: Peak
    reserved: Peak | None = None

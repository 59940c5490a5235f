"""Peaks of a test, as plain data."""

from __future__ import annotations

from typing import NamedTuple


class Peak(NamedTuple):
    """How far one counter of one device rose during a test, in bytes; not `exact`: as far as it was read.

    `before` includes what higher-scoped fixtures added meanwhile; `own` is the peak above it, without their setups,
    which `total` has. `workspaces` of libraries are in neither where they are counted apart; so far as they came only
    after the peak, it was higher by as much.
    """

    before: int
    own: int
    total: int
    exact: bool = True
    workspaces: int = 0


class DevicePeak(NamedTuple):
    """One device's peaks during a test. `reserved` is None where it is not counted."""

    allocated: Peak
    reserved: Peak | None = None


CPU = "cpu"
"""The device of the host's tensors."""


class Taken(NamedTuple):
    """What a test has taken of one device at its peak, in bytes; None: no counter tells, as for the host's tensors."""

    device: str
    bytes: int | None

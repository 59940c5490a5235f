"""Decide whether memory on a device is on its way out, by its cause. Pure: readings are passed in, and no clock is read.

What a living process holds goes only if that process lets go of it: it is waited for while it falls. What a process that has
ended holds, and what no listed process holds, the driver gives back by itself, sooner or later: it is waited for as long as
the caller may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from pytest_gpuleak.engine.limits import LEAST_OCCUPIED, STEADY_READINGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuleak.adapters.nvml.readings import NvmlReading

State = Literal["gone", "held", "leaving"]
"""Nothing is occupied; living processes hold what is, and let go of nothing; or some of it is on its way out."""

Standing = Literal["left", "ending", "apart"]
"""A process that the test has left, one that has ended and is still listed, or one whose memory is not waited for."""


class Holding(NamedTuple):
    """A listed process of this run that has memory on the device, in bytes; `ending` if it has ended."""

    pid: int
    bytes: int
    ending: bool


class Remains(NamedTuple):
    """What a test may have left on one device, in bytes.

    Attributes:
        here: what the test's findings have in this process.
        processes: the processes that the test has left, and those that have ended and are still listed.
        unlisted: bytes in use that no listed process has, beyond those before the test.
        unmatched: where listed processes cannot be told apart, bytes in use beyond those before the test.
    """

    here: int = 0
    processes: tuple[Holding, ...] = ()
    unlisted: int = 0
    unmatched: int = 0

    @property
    def living(self) -> int:
        """Return the bytes that living processes hold."""
        living = [one.bytes for one in self.processes if not one.ending]
        return sum(size for size in (self.here, self.unmatched, *living) if size >= LEAST_OCCUPIED)

    @property
    def is_leaving(self) -> bool:
        """Return whether the driver is to give some of it back: no living process holds it."""
        ending = (one.bytes for one in self.processes if one.ending)
        return any(size >= LEAST_OCCUPIED for size in (self.unlisted, *ending))


def tell_state(readings: Sequence[Remains]) -> State:
    """Tell the state of a device by its readings since the test ended, `DEVICE_STEP_S` apart; the last one counts most.

    What living processes hold is held once the last `STEADY_READINGS` have no smaller sum than the readings before.
    """
    if readings[-1].is_leaving:
        return "leaving"
    living = [reading.living for reading in readings]
    if not living[-1]:
        return "gone"
    earlier, last = living[:-STEADY_READINGS], living[-STEADY_READINGS:]
    return "held" if earlier and min(last) >= min(earlier) else "leaving"


def compare(
    before: NvmlReading,
    now: NvmlReading,
    standings: Mapping[int, Standing],
    *,
    here: int = 0,
    own_growth: int | None = 0,
) -> Remains:
    """Return what a test may have left: `standings` by pid, `here` as in `Remains`.

    `own_growth` is what this process has reserved beyond before the test, of which the driver's total includes all; None:
    unknown, so the total tells nothing.
    """
    left = [row for row in (*now.children, *now.others) if standings.get(row.pid, "apart") != "apart"]
    processes = tuple(Holding(row.pid, row.bytes or 0, standings[row.pid] == "ending") for row in left)
    if now.own is None:
        grown, ended = _beyond_children(before, now, own_growth)
        return Remains(here, processes, unlisted=min(grown, ended), unmatched=max(0, grown - ended))
    outside, outside_before = _unlisted(now), _unlisted(before)
    known = outside is not None and outside_before is not None
    return Remains(here, processes, max(0, outside - outside_before) if known else 0)  # type: ignore[operator]


def _beyond_children(before: NvmlReading, now: NvmlReading, own_growth: int | None) -> tuple[int, int]:
    """Return how much more is in use than before the test, beyond what this process and its children have more.

    And how much of it may be what children had that have ended since. Where the driver cannot tell processes apart, what
    `children` have is what their frameworks have reserved: the first use brings a context of unknown size as well.
    """
    had = {row.pid: row.bytes or 0 for row in before.children}
    have = {row.pid: row.bytes or 0 for row in now.children}
    if before.used is None or now.used is None or own_growth is None or not have.keys() <= had.keys():
        return 0, 0
    grown = now.used - before.used - own_growth - sum(have.values()) + sum(had.values())
    return max(0, grown), sum(size for pid, size in had.items() if pid not in have)


def _unlisted(reading: NvmlReading) -> int | None:
    """Return the bytes in use that no listed process has; None where a figure is missing."""
    listed = [reading.own, *(row.bytes for row in (*reading.children, *reading.others))]
    known = [size for size in listed if size is not None]
    return None if reading.used is None or len(known) < len(listed) else reading.used - sum(known)

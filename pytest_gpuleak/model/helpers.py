"""Memory of helper processes that higher-scoped fixtures have started, as plain data, and when it has drifted. No verdict."""

from typing import Final, NamedTuple

from pytest_gpuleak.model.text import MIB

# No postponed annotations: `outcomes.TestRecord` names a type of these.
WARM_UP: Final = 3
"""Tests of a helper in which it may load and fill what it keeps."""

LEAST_DRIFT: Final = 10 * MIB
"""Bytes beyond those after the warm-up from which a helper has drifted. One that leaks nothing climbs by less, as a rule."""

LEAST_STEP: Final = 2 * MIB
"""Bytes that each run of a test must add where too few tests follow the warm-up to tell growth from it."""


class HelperReading(NamedTuple):
    """What a helper had before and after one test, in bytes, on the host or a device; `before` is None where it was not read.

    On the host these are the anonymous bytes of the process, where the system tells them.
    """

    pid: int
    device: str
    before: int | None
    after: int


class HelperGrowth(NamedTuple):
    """What the runs of one test function have added to a helper, all parameters together.

    Attributes:
        test: its nodeid without parameters.
        runs: runs with a reading before and after, of which `grew` have added `bytes` in all.
        least: bytes that the run has added which has added least; negative where it has let go of some.
    """

    test: str
    runs: int
    grew: int
    bytes: int
    least: int


class HelperMemory(NamedTuple):
    """One helper process's memory on the host or a device, over the tests that it has met.

    Attributes:
        name: multiprocessing's name of it, else its program.
        fixture: the fixture whose setup has started it, or the process that it descends from.
        worker: the xdist worker whose helper it is, or ``main``.
        first: bytes after its first test; `settled` after its third, None where it has met fewer; `last` at its end.
        growth: the test functions that have added to it, those that have added most first, `MOST_TESTS` of them.
        agent: whether the run was to check it from within too.
    """

    pid: int
    name: str
    command: str
    fixture: str
    worker: str
    device: str
    tests: int
    first: int
    settled: int | None
    last: int
    growth: tuple[HelperGrowth, ...] = ()
    agent: bool = False


MOST_TESTS: Final = 5


def has_drifted(helper: HelperMemory) -> bool:
    """Tell whether a helper has drifted: it has grown since its warm-up.

    Where hardly more tests follow than the warm-up has, what grows cannot be told from it by size: there a test counts
    each of whose runs has added to the helper.
    """
    if helper.settled is not None and helper.last - helper.settled > LEAST_DRIFT:
        return True
    if helper.tests > 2 * WARM_UP or helper.last <= helper.first:
        return False
    return any(grown.runs > 1 and grown.least >= LEAST_STEP for grown in helper.growth)

"""Who initialised a device first in this process, as plain data."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pytest_gpuleak.model.outcomes import FixturePlace

Phase = Literal["start", "import", "collection", "fixture", "test", "session"]

BEFORE_TESTS: tuple[Phase, ...] = ("start", "import", "collection")
"""Phases before the first test: what is initialised there, each process that a test forks inherits."""


class Caller(NamedTuple):
    """A place in source code; `file` is relative to the rootdir where it lies below it."""

    file: str
    line: int
    function: str


class FirstInit(NamedTuple):
    """The first initialisation of a device.

    Attributes:
        device: the type of device (``cuda``).
        by: the library that did it (``torch.cuda``); None: not torch, which is all that is known then.
        phase: ``start`` (before a conftest.py was loaded, or in a hook before collection), ``import`` (of a conftest.py),
            ``collection``, ``fixture`` (its setup), ``test`` (any other part of a test) or ``session`` (outside of tests,
            once they were collected).
        nodeid: the test; in ``collection`` the file, class or folder; in ``import`` the conftest.py.
        hook: the hook of a plugin or conftest.py that did it, outside of tests and of files that were collected.
        fixture: the fixture that was set up.
        file, line: the user's line: of an import, the line of the module that was imported.
        importing: the module whose import did it; None: no import did.
        caller: the call into the library, where that is another line.
        thread: the thread's name where another than pytest's did it.
        worker: the xdist worker (``gw0``), or ``main``.
        pid: the process; one that was forked from it cannot use the device.
    """

    device: str
    by: str | None
    phase: Phase
    worker: str
    pid: int
    nodeid: str | None = None
    hook: str | None = None
    fixture: FixturePlace | None = None
    file: str | None = None
    line: int | None = None
    importing: str | None = None
    caller: Caller | None = None
    thread: str | None = None

    @property
    def before_tests(self) -> bool:
        """Tell whether it was during import or collection."""
        return self.phase in BEFORE_TESTS


def decode_first_init(data: dict[str, Any]) -> FirstInit:
    """Decode what `encode` returned. Raises KeyError or TypeError for anything else."""
    parts = {
        name: None if data[name] is None else kind(**data[name])
        for name, kind in (("fixture", FixturePlace), ("caller", Caller))
    }
    return FirstInit(**{**data, **parts})


def earlier_of(one: FirstInit | None, other: FirstInit) -> FirstInit:
    """Return what one report says of several processes: what was before the tests, else that of the first worker."""
    if one is None:
        return other
    return min(one, other, key=lambda found: (not found.before_tests, found.worker))

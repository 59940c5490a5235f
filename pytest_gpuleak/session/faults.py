"""Note faults of the check itself and of the user's hooks: each costs only its stage, and is told once.

The stages after one that raises work with what is known. Only text of the exception is kept, because the frames of its
traceback hold the arrays that are being judged. Loaded with the first fault or the first suspect.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.session.pytest_internals import warn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, TracebackType

    from pytest_gpuleak.engine.stages import Stage

MAX_ERROR_TEXT: Final = 300
"""Characters of an error's message that are kept."""

MAX_CAUSES: Final = 20
"""Errors behind an error (``__cause__``, ``__context__``) whose frames are cleared. Bounded: a chain may be a ring."""

_RUNNERS: Final = ("pytest_gpuleak", "_pytest", "pluggy")
"""Packages whose frames stand between the check and the code that it calls."""


class Faults:
    """Note the failures in one process, as text."""

    def __init__(self, config: pytest.Config, shorten: Callable[[str], str]) -> None:
        self._config = config
        self._shorten = shorten
        self._told: set[str] = set()
        self._texts: list[str] = []
        self.blinding = ""
        """The running test's first fault that may hide something that it left; empty: none."""
        self.of_session: list[str] = []
        """Faults outside of tests, each once."""

    def guard(self, stage: Stage, nodeid: str, code: CodeType | None = None) -> Guard:
        """Return a context for the stage, as `engine.stages.Safeguards.guard`: an error ends it and is noted."""
        return Guard(self, stage, nodeid, code)

    def note(self, stage: Stage, error: BaseException, nodeid: str, code: CodeType | None = None) -> str:
        """Note that a stage has failed, release what the error refers to, and return the fault as text.

        The first fault of its kind becomes a warning. `pytest.exit` and `sys.exit` still end the run, later.
        """
        text = describe(error, self._shorten, code)
        if isinstance(error, (pytest.exit.Exception, SystemExit)):
            self._stop(f"{stage.name} asked to end the run: {text}")
        # Without the message: a message with an address or a shape would be repeated for every test.
        key = f"{stage.name} {type(error).__name__} {_place_of(error, code)}"
        forget_frames(error)
        return self.add(stage, text, nodeid, key)

    def add(self, stage: Stage, text: str, nodeid: str, key: str = "") -> str:
        """Note a fault without an exception, and return its text. Faults of a kind share `key`, by default the text."""
        fault = f"{stage.name} failed: {text}"
        noted = self.of_session if stage.of_session else self._texts
        if fault not in noted:
            noted.append(fault)
        if stage.blinds and not self.blinding:
            self.blinding = fault
        if (key or fault) not in self._told:
            self._told.add(key or fault)
            warn(self._config, f"{fault}; {stage.then} (first in {nodeid or 'no test'})", nodeid)
        return text

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the running test's faults."""
        return tuple(self._texts)

    def take(self) -> tuple[str, ...]:
        """Return the faults of the test that was just judged, and start the next list."""
        texts, self._texts, self.blinding = tuple(self._texts), [], ""
        return texts

    def leave_to_session(self) -> None:
        """Assign what was noted since the last test to the session."""
        self.of_session += [text for text in self.take() if text not in self.of_session]

    def _stop(self, why: str) -> None:
        session: Any = self._config.pluginmanager.get_plugin("session")
        if session is not None and not session.shouldstop:
            session.shouldstop = why


class Guard:
    """The context of one stage, see `Faults.guard`. Lets `KeyboardInterrupt` through."""

    __slots__ = ("_code", "_faults", "_nodeid", "_stage", "fault")

    def __init__(self, faults: Faults, stage: Stage, nodeid: str, code: CodeType | None = None) -> None:
        self._faults = faults
        self._stage = stage
        self._nodeid = nodeid
        self._code = code
        self.fault = ""

    def __enter__(self) -> Guard:  # noqa: PYI034 - `Self` comes with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None or error is None or issubclass(kind, KeyboardInterrupt):
            return False
        del trace
        self.fault = self._faults.note(self._stage, error, self._nodeid, self._code)
        return True


def describe(error: BaseException, shorten: Callable[[str], str], code: CodeType | None = None) -> str:
    """Describe an error in one line: its type, its message, and where it was raised.

    The place is the outermost line of the code that the check called, else the line of the check, else that of `code`.
    """
    try:
        message = clean_text(str(error), MAX_ERROR_TEXT)
    except Exception:  # noqa: BLE001 - a user's exception may have any __str__
        message = "its message cannot be shown"
    if isinstance(error, pytest.skip.Exception | pytest.fail.Exception | pytest.exit.Exception):
        name = f"pytest.{type(error).__name__.lower().replace('skipped', 'skip').replace('failed', 'fail')}()"
    else:
        name = clean_text(type(error).__name__, MAX_ERROR_TEXT)
    place = _place_of(error, code)
    where = "" if place is None else f" ({clean_text(shorten(place[0]), MAX_ERROR_TEXT)}:{place[1]})"
    return f"{name}: {message}{where}" if message else f"{name}{where}"


def _place_of(error: BaseException, code: CodeType | None) -> tuple[str, int] | None:
    place: tuple[str, int] | None = None
    step = error.__traceback__
    while step is not None:
        package = str(step.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        place = step.tb_frame.f_code.co_filename, step.tb_lineno
        if package not in _RUNNERS:
            return place
        step = step.tb_next
    return place if code is None else (code.co_filename, code.co_firstlineno)


def forget_frames(error: BaseException) -> None:
    """Clear the frames that an error and its causes passed through, which hold their arguments."""
    behind: list[BaseException | None] = [error]
    for _ in range(MAX_CAUSES):
        if not behind:
            return
        one = behind.pop()
        if one is not None:
            traceback.clear_frames(one.__traceback__)
            behind += [one.__cause__, one.__context__]

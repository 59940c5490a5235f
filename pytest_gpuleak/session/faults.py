"""Note faults of the check and of user hooks as text, once: a traceback's frames would hold what is being judged.

The plugin's own frames are removed from tracebacks, since pytest may show hidden ones.
"""

from __future__ import annotations

import builtins
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuleak.model.source_files import shorten
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.session.pytest_internals import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, TracebackType

    from pytest_gpuleak.engine.stages import Stage


MAX_ERROR_TEXT: Final = 300
"""Characters of an error's message that are kept."""

_RUNNERS: Final = ("pytest_gpuleak", "_pytest", "pluggy")
"""Packages whose frames stand between the check and the code that it calls."""


class Faults:
    """Note the failures in one process, as text."""

    def __init__(self, config: pytest.Config, root: str) -> None:
        self._config = config
        self._root = root
        self._told: set[str] = set()
        self._texts: list[str] = []
        self.blinding = ""
        """The running test's first fault that may hide something that it left; empty: none."""
        self.of_session: list[str] = []
        """Faults outside of tests, each once."""

    def guard(self, stage: Stage, nodeid: str, code: CodeType | None = None) -> Guard:
        """Return a context for the stage, as `engine.stages.Safeguards.guard`."""
        return Guard(lambda error: self.note(stage, error, nodeid, code))

    def note(self, stage: Stage, error: BaseException, nodeid: str, code: CodeType | None = None) -> str:
        """Note a stage's error, release what it refers to, and return it as text. Exits still end the run, later."""
        text = describe(error, self._root, code)
        if isinstance(error, (pytest.exit.Exception, SystemExit)):
            session: Any = self._config.pluginmanager.get_plugin("session")
            if session is not None and not session.shouldstop:
                session.shouldstop = f"{stage.name} asked to end the run: {text}"
        # Without the message: a message with an address or a shape would be repeated for every test.
        key = f"{stage.name} {type(error).__name__} {_place_of(error, code)}"
        for one in error_chain(error):
            traceback.clear_frames(traceback_of(one))  # they hold their arguments
        return self.add(stage, text, nodeid, key)

    def add(self, stage: Stage, text: str, nodeid: str, key: str = "") -> str:
        """Note a fault, and warn of the first of its kind (`key`, by default the text). Return the text."""
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


class Guard:
    """The context of one stage, see `Faults.guard`. Lets `KeyboardInterrupt` through."""

    __slots__ = ("_note", "fault")

    def __init__(self, note: Callable[[BaseException], str]) -> None:
        self._note = note
        self.fault = ""

    def __enter__(self) -> Guard:  # noqa: PYI034 - `Self` comes with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None or error is None or issubclass(kind, KeyboardInterrupt):
            return False
        del trace
        self.fault = self._note(error)
        return True


def describe(error: BaseException, root: str, code: CodeType | None = None) -> str:
    """Describe an error in one line: its type, its message, and where it was raised, or else the place of `code`."""
    try:
        message = clean_text(str(error), MAX_ERROR_TEXT)
    except Exception:  # noqa: BLE001 - a user's exception may have any __str__
        message = "its message cannot be shown"
    if isinstance(error, pytest.skip.Exception | pytest.fail.Exception | pytest.exit.Exception):
        name = f"pytest.{type(error).__name__.lower().replace('skipped', 'skip').replace('failed', 'fail')}()"
    else:
        name = clean_text(type(error).__name__, MAX_ERROR_TEXT)
    place = _place_of(error, code)
    where = "" if place is None else f" ({clean_text(shorten(place[0], root), MAX_ERROR_TEXT)}:{place[1]})"
    return f"{name}: {message}{where}" if message else f"{name}{where}"


def _place_of(error: BaseException, code: CodeType | None) -> tuple[str, int] | None:
    place: tuple[str, int] | None = None
    for frame, line in traceback.walk_tb(traceback_of(error)):
        place = frame.f_code.co_filename, line
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _RUNNERS:
            return place
    return place if code is None else (code.co_filename, code.co_firstlineno)


_PACKAGE = __name__.partition(".")[0]
# Bypass the user's class, whose attributes may be properties.
_TRACEBACK, _CAUSE, _CONTEXT = (vars(BaseException)[f"__{name}__"] for name in ("traceback", "cause", "context"))


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes, contexts and members of groups, nearest first, each once."""
    waiting: list[BaseException | None] = [error]
    met: set[int] = set()
    # The backport for Python 3.10, that pytest uses too.
    backport = getattr(sys.modules.get("exceptiongroup"), "BaseExceptionGroup", None)
    group: Any = getattr(builtins, "BaseExceptionGroup", backport)
    while waiting:
        one = waiting.pop(0)
        if one is not None and id(one) not in met:
            met.add(id(one))
            yield one
            waiting += [_CAUSE.__get__(one), _CONTEXT.__get__(one)]
            if group is not None and group in type(one).__mro__:
                waiting += vars(group)["exceptions"].__get__(one)


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return an error's traceback, without running code of its class."""
    first: TracebackType | None = _TRACEBACK.__get__(error)
    return first


def drop_own_frames(error: BaseException) -> None:
    """Remove the frames of the plugin's hook wrappers from the tracebacks of an error and its causes."""
    for one in error_chain(error):
        _drop(traceback_of(one))


def _drop(first: TracebackType | None) -> None:
    """Drop each wrapper that pluggy threw the error into: its entry lies between two of one frame of pluggy's."""
    if first is None:
        return
    last, entry = first, first.tb_next
    while entry is not None:
        wrapper = entry.tb_next
        after = None if wrapper is None else wrapper.tb_next
        if wrapper is not None and after is not None and after.tb_frame is entry.tb_frame and _is_own(wrapper):
            last.tb_next = entry = after  # several of our wrappers may follow each other
        else:
            last, entry = entry, wrapper


def _is_own(entry: TracebackType) -> bool:
    return str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE

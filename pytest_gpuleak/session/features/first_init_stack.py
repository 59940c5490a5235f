"""Read from the stack who initialises a device: the user's line, and what pytest was doing.

pytest's frames are known by the names of its hooks and of their arguments, which are its public interface. They are read
only now, so no hook has to follow each test and fixture.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.heap.frames import PACKAGE, local_variables, thread_name
from pytest_gpuleak.heap.safe_access import plain_text
from pytest_gpuleak.model.first_init import Caller, FirstInit
from pytest_gpuleak.model.source_files import below_packages, is_user_file, shorten
from pytest_gpuleak.session.fixtures import place_of

if TYPE_CHECKING:
    from types import FrameType

    from pytest_gpuleak.model.first_init import Phase

_MODULE: Final = "<module>"
"""The function's name in the frame of a module that is being imported."""

_HARNESS: Final = frozenset({"_pytest", "pytest", "pluggy", "xdist", PACKAGE})
_NO_CALLERS: Final = frozenset({*_HARNESS, *sys.stdlib_module_names})
"""Packages whose frames are not what called into the library, unless they are the user's files."""


class Call(NamedTuple):
    """A frame of the stack, as plain data; `is_user`: its file is the user's."""

    module: str
    file: str
    line: int
    function: str
    is_user: bool

    @property
    def package(self) -> str:
        """Return the top-level package."""
        return self.module.partition(".")[0]


class Place(NamedTuple):
    """The user's line, the module whose import it is part of, and the call into the library where that is another."""

    call: Call | None
    importing: str | None
    caller: Call | None


def find_place(calls: list[Call], library: str) -> Place:
    """Choose the line to edit, of frames with the innermost first: this package's, then those of the package `library`.

    In an import it is the line of the innermost module of the user's that is being imported: what must not run there. Else
    it is the innermost line of the user's.
    """
    # A checkout of the library is the user's, too.
    calls = [*dropwhile(lambda call: call.package in (PACKAGE, library), calls)]
    users = [call for call in calls if call.is_user]
    imported = next((call for call in users if call.function == _MODULE), None)
    chosen = imported or next(iter(users), None)
    skipped = {*_NO_CALLERS, library}
    caller = next((call for call in calls if call.is_user or call.package not in skipped), None)
    return Place(chosen, None if imported is None else imported.module, None if caller == chosen else caller)


def describe_stack(device: str, by: str | None, pytest_thread: int, root: str, *, collected: bool) -> FirstInit:
    """Describe the initialisation that this thread is in the midst of. `collected`: the tests were collected before."""
    own = get_ident()
    calls, context = _walk(sys._getframe(1), root)
    around = calls
    if own != pytest_thread:
        around, context = _walk(sys._current_frames().get(pytest_thread), root)
    place = find_place(calls, (by or "").partition(".")[0])
    chosen, caller = place.call, place.caller
    return FirstInit(
        device=device,
        by=by,
        worker="main",
        pid=os.getpid(),
        **_when(around, context, root, collected=collected),
        file=None if chosen is None else _shorten(chosen.file, root),
        line=None if chosen is None else chosen.line,
        importing=place.importing,
        caller=None if caller is None else Caller(_shorten(caller.file, root), caller.line, caller.function),
        thread=None if own == pytest_thread else thread_name(own),
    )


def _walk(frame: FrameType | None, root: str) -> tuple[list[Call], dict[str, Any]]:
    """List the frames up to pytest's own that tells what it does; return the arguments of its hooks on the way."""
    calls: list[Call] = []
    context: dict[str, Any] = {}
    while frame is not None:
        code, module = frame.f_code, plain_text(dict.get(frame.f_globals, "__name__")) or "?"
        name, from_pytest = code.co_name, module.startswith("_pytest.")
        if name == "pytest_runtest_protocol" and "item" in code.co_varnames[: code.co_argcount]:
            context["item"] = _argument(frame, "item")  # of any plugin: it may run the test in pytest's place
            break
        if from_pytest and name == "pytest_make_collect_report":
            context["collector"] = _argument(frame, "collector")
            break
        if from_pytest and name == "pytest_collection":
            context["collects"] = True
            break
        if module == "__main__" or (module == "_pytest.config" and name in ("main", "_main")):
            break
        if from_pytest and name == "pytest_fixture_setup" and "fixturedef" not in context:
            context["fixturedef"], context["request"] = _argument(frame, "fixturedef"), _argument(frame, "request")
        file = code.co_filename
        calls.append(Call(module, file, frame.f_lineno, name, is_user_file(file, root)))
        frame = frame.f_back
    return calls, context


def _when(calls: list[Call], context: dict[str, Any], root: str, *, collected: bool) -> dict[str, Any]:
    """Return the fields of `FirstInit` that tell what pytest was doing."""
    item, collector = context.get("item"), context.get("collector")
    if item is not None:
        fixture = context.get("fixturedef")
        if fixture is None:
            return {"phase": "test", "nodeid": str(item.nodeid)}
        place = place_of(fixture, context["request"], lambda path: shorten(path, root))
        return {"phase": "fixture", "nodeid": str(item.nodeid), "fixture": place}
    for call in calls:
        if call.is_user and call.function == _MODULE and os.path.basename(call.file) == "conftest.py":  # noqa: PTH119
            return {"phase": "import", "nodeid": shorten(call.file, root)}
    if collector is not None:
        return {"phase": "collection", "nodeid": str(collector.nodeid) or None}
    hooks = (call.function for call in calls if call.function.startswith("pytest_") and call.package not in _HARNESS)
    phase: Phase = "collection" if context.get("collects") else "session" if collected else "start"
    return {"phase": phase, "hook": next(hooks, None)}


def _argument(frame: FrameType, name: str) -> Any:
    return next((value for variable, value in local_variables(frame) if variable == name), None)


def _shorten(path: str, root: str) -> str:
    return shorten(path if is_user_file(path, root) else below_packages(path), root)

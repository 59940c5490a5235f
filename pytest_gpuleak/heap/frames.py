"""Read running functions and their local variables by name, since a running frame hides them (frame_traverse, 3.11).

Up to 3.12 that leaves a dict of them in the frame, emptied unless user code holds it (`locals()`).
"""

from __future__ import annotations

import gc
import inspect
import re
import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap.collector import get_referrers, whole_heap
from pytest_gpuleak.heap.interpreter import getrefcount
from pytest_gpuleak.heap.safe_access import cut_name, instance_dict, is_a, is_within, loaded, loaded_class, plain_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

PACKAGE: Final = "pytest_gpuleak"
"""Prefix of module names whose frames, globals and types never count as holders: this package."""

_GENERATOR_FLAGS: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

COMPREHENSIONS: Final = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""Names of the frames that comprehensions have before Python 3.12 (PEP 709)."""

_SNAPSHOT_REFERENCES: Final = 3
"""References to a snapshot that user code does not hold: the frame's, a variable's and `getrefcount`'s argument."""


@dataclass(frozen=True)
class RunningFrame:
    """One frame on some thread's stack. `thread` is None for the thread that searches."""

    frame: types.FrameType
    thread: str | None

    def describe(self) -> str:
        """Write the frame as a root: ``thread 'loader' in run``, ``frame of pkg.mod.main``."""
        if self.thread is not None:
            return f"thread {self.thread!r} in {function_name(self.frame.f_code)}"
        module = plain_text(self.frame.f_globals.get("__name__"))
        name = function_name(self.frame.f_code)
        return f"frame of {name}" if module is None else f"frame of {cut_name(module)}.{name}"


def function_name(code: types.CodeType) -> str:
    """Return the qualified name of a code object, equal in all Python versions."""
    # Before Python 3.11 it is the running function's, or the plain name if that has another's (`functools.wraps`).
    found = getattr(code, "co_qualname", None) or _name_of_owner(code) or code.co_name
    return without_comprehensions(cut_name(str(found)))


def _name_of_owner(code: types.CodeType) -> str | None:
    for owner in get_referrers(code):
        if type(owner) is types.FunctionType and owner.__code__ is code:
            name = plain_text(owner.__qualname__)
            if name is not None and name.rpartition(".")[2] == code.co_name:
                return name
    return None


def without_comprehensions(qualname: str) -> str:
    """Remove ``<listcomp>`` and the like from a qualified name: they are no functions since 3.12 (PEP 709)."""
    parts = qualname.split(".")
    kept = [part for part in parts if part not in COMPREHENSIONS]
    while kept and kept[-1] == "<locals>":
        kept.pop()
    return re.sub(r"<locals>(\.<locals>)+", "<locals>", ".".join(kept)) or "<module>"


def belongs_to_plugin(namespace: object) -> bool:
    """Tell whether a dict of globals is that of a module of this package."""
    return type(namespace) is dict and is_within(plain_text(namespace.get("__name__")), PACKAGE)


def running_frames(ignore: Collection[int]) -> list[RunningFrame]:
    """Return the frames on all threads' stacks, innermost first, without this package's and ignored ones."""
    found: list[RunningFrame] = []
    own = id(sys._getframe())  # not `get_ident`: see `threads.other_frames`
    stacks = sys._current_frames()
    while stacks:  # emptied, since it holds this very frame: a cycle
        ident, frame = stacks.popitem()
        name = None if id(frame) == own else thread_name(ident)
        while frame is not None:
            if not belongs_to_plugin(frame.f_globals) and id(frame) not in ignore:
                found.append(RunningFrame(frame, name))
            frame = frame.f_back  # type: ignore[assignment]  # None at the outermost frame
    return found


def live_threads() -> list[object]:
    """Return the `threading.Thread` objects whose threads run."""
    thread_class = loaded_class("threading", "Thread")
    return [] if thread_class is None else [one for one in list(_active_threads().values()) if is_a(one, thread_class)]


def _active_threads() -> dict[int, Any]:
    active = loaded("threading", "_active")
    return active if type(active) is dict else {}


def thread_name(ident: int) -> str:
    """Return the name of a thread by its ident; ``?`` for one that `threading` did not start."""
    thread = _active_threads().get(ident)
    return "?" if thread is None else name_of_thread(thread)


def name_of_thread(thread: object) -> str:
    """Return a `threading.Thread`'s name without calling its property."""
    namespace = instance_dict(thread)
    return cut_name((None if namespace is None else plain_text(namespace.get("_name"))) or "?")


def local_variables(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return names and values of a frame's locals, and leave nothing behind in the frame."""
    namespace: Any = frame.f_locals
    if type(namespace) is not dict:
        # 3.13: a view of the frame (PEP 667). A class body's own mapping (`__prepare__`) would run user code.
        view: Any = namespace
        return list(view.items()) if _is_view(view) else []
    found = list(namespace.items())
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and getrefcount(namespace) <= _SNAPSHOT_REFERENCES:
        namespace.clear()
    return found


def _is_view(namespace: object) -> bool:
    # No variable: a view refers to its frame, and the frame would refer to the view.
    view: type = type(inspect.currentframe().f_locals)  # type: ignore[union-attr]  # CPython has frames
    return type(namespace) is view and view is not dict


def suspended_frames(frames: Iterable[types.FrameType]) -> set[int]:
    """Return the ids of the frames whose generator or coroutine has not come to its end: each may still go on."""
    frames = [frame for frame in frames if frame.f_code.co_flags & _GENERATOR_FLAGS]
    if sys.version_info >= (3, 11):
        # The collector sees into a frame only once it owns its contents (Objects/frameobject.c, frame_traverse).
        return {id(frame) for frame in frames if not any(part is frame.f_code for part in gc.get_referents(frame))}
    if not frames:
        return set()
    # Python 3.10: only an unfinished generator refers to its frame.
    with whole_heap():
        holders = get_referrers(*frames)
    kinds = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
    return {
        id(frame)
        for holder in holders
        if type(holder) in kinds
        for frame in frames
        if any(part is frame for part in gc.get_referents(holder))
    }

"""Rename roots whose global is a library's own registry to names that readers know: ``logging.getLogger('app')``."""

from __future__ import annotations

import re
import types
import weakref
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuleak.explain.definitions import unwrapped
from pytest_gpuleak.explain.edges.chain import Step
from pytest_gpuleak.explain.edges.library import reaches
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.frames import thread_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.explain.edges.chain import Line
    from pytest_gpuleak.model.findings import HolderKind

_LOCAL: Final = re.compile(r"\.cr_frame\.f_locals\[(.*)\]")
AT_EXIT: Final = "atexit callback "
"""Beginning of the root of a function given to `atexit.register`."""

_NUMBERED_TASK: Final = re.compile(r"Task-\d+")
"""Default name of a task, which differs from run to run (Lib/asyncio/tasks.py)."""

KEEPS_AWAITED: Final = ", which it refers to"
"""End of the root of a finaliser whose function or arguments keep alive what it waits for."""

_LOOP_MODULES: Final = ("asyncio", "_asyncio", "selectors", "uvloop", "functools", "collections")
"""Modules whose objects may lie between an event loop and a task. A user's object there is the better root."""


class Renamed(NamedTuple):
    """A root under its better name: kind, text, the steps from there, and the code that it runs, if known."""

    kind: HolderKind
    text: str
    steps: list[Step]
    code: object = None


def rename(line: Line, text: str) -> Renamed | None:
    """Return the better name of the root `text` above a path, or None."""
    if text.startswith(AT_EXIT):
        return Renamed("native", text, _with_colon(line.steps), line.objects.get(0))
    namer = _NAMERS.get(text)
    return (None if namer is None else namer(line)) or _task(line)


def _logger(line: Line) -> Renamed | None:
    """Rename to a logger's name; ``Logger.manager`` keeps all of them (Lib/logging/__init__.py, Manager)."""
    steps = line.steps
    if len(steps) > 3 and [steps[0].text, steps[1].text] == [".manager", ".loggerDict"]:
        return Renamed("module", f"logging.getLogger({steps[2].text[1:-1]})", steps[3:])
    return None


def _finalizer(line: Line) -> Renamed | None:
    """Rename to a finaliser's callback and the type that it waits for (Lib/weakref.py, finalize._Info)."""
    steps = line.steps
    if len(steps) < 3 or steps[0].text != "._registry":
        return None
    info = line.objects[steps[2].position]
    if safe_access.resolve("weakref", "finalize._Info") is not type(info):
        return None
    function, reference, *arguments = (
        safe_access.slot(info, type(info), name) for name in ("func", "weakref", "args", "kwargs")
    )
    text = f"weakref.finalize callback {callback_name(function)}"
    referent = weakref.ReferenceType.__call__(reference) if safe_access.is_a(reference, weakref.ReferenceType) else None
    if referent is not None:
        text += f" of {safe_access.definition_name(referent) or safe_access.class_label(type(referent))}"
        if reaches((function, *arguments), referent):
            text += KEEPS_AWAITED
    return Renamed("class", text, _with_colon(steps[2:]), function)


def _patch(line: Line) -> Renamed | None:
    """Rename to a patch that was never stopped (Lib/unittest/mock.py, _patch.start)."""
    steps = line.steps
    if len(steps) < 3 or steps[0].text != "._active_patches":
        return None
    namespace = safe_access.instance_dict(line.objects[steps[2].position])
    attribute = None if namespace is None else safe_access.plain_text(namespace.get("attribute"))
    shown = None if attribute is None else safe_access.cut_name(attribute)
    return Renamed("class", f"unittest.mock.patch of {shown!r}, not stopped", _with_colon(steps[2:]))


def _codec_error(line: Line) -> Renamed | None:
    steps = line.steps
    if steps and steps[0].text.startswith("["):
        return Renamed("module", f"codecs.lookup_error({steps[0].text[1:-1]})", steps[1:], line.objects[1])
    return None


_NAMERS: Final[dict[str, Callable[[Line], Renamed | None]]] = {
    "logging.Logger": _logger,
    "weakref.finalize": _finalizer,
    "unittest.mock._patch": _patch,
    "codecs.register_error": _codec_error,
}


def _task(line: Line) -> Renamed | None:
    """Rename to the name and coroutine of a task that only its event loop holds."""
    if line.met.task is None:
        return None
    found, task = line.met.task
    cls = task_class(task)
    if cls is None:
        return None
    rest = [step for step in line.steps if step.position >= found]
    coroutine = _of_task(task, cls, "get_coro", "_coro")
    where = _coroutine_name(coroutine)
    name = safe_access.plain_text(_of_task(task, cls, "get_name", "_name"))
    is_numbered = where and (name is None or _NUMBERED_TASK.fullmatch(name))
    text = "asyncio task" if is_numbered else _named("asyncio task", name)
    future = safe_access.loaded_class("_asyncio", "Future")  # its `get_loop` serves tasks written in C
    thread = _thread_of_loop(_of_task(task, cls if future is None else future, "get_loop", "_loop"))
    if where is not None and rest and rest[0].text in (".get_coro()", "._coro"):
        inside = _LOCAL.fullmatch(rest[1].text) if len(rest) > 1 else None
        if inside is not None:
            rest = [Step(f": local {inside.group(1)}", rest[1].label, rest[1].position), *rest[2:]]
        else:
            rest = _with_colon([Step(".coroutine", rest[0].label, rest[0].position), *rest[1:]])
    code = coroutine.cr_code if type(coroutine) is types.CoroutineType else None
    text = text if where is None else f"{text} in {where}"
    return Renamed("thread", text if thread is None else f"{text}, {_named('thread', thread)}", rest, code)


def _named(what: str, name: str | None) -> str:
    return f"{what} {None if name is None else safe_access.cut_name(name)!r}"


def _thread_of_loop(loop: object) -> str | None:
    namespace = safe_access.instance_dict(loop)
    ident = None if namespace is None else namespace.get("_thread_id")  # Lib/asyncio/base_events.py, run_forever
    name = thread_name(ident) if type(ident) is int else "MainThread"
    return None if name == "MainThread" else name


def task_class(value: object) -> type | None:
    """Return asyncio's class that makes `value` a task; None where it is no task."""
    for module, name in (("_asyncio", "Task"), ("asyncio.tasks", "_PyTask")):
        cls = safe_access.loaded_class(module, name)
        if cls is not None and safe_access.is_a(value, cls):
            return cls
    return None


_METHODS_IN_C: Final = (types.BuiltinFunctionType, type(re.compile("").match))
"""Methods written in C; some, as `get_loop` on Python 3.12, are PyCMethod_Type's (Objects/methodobject.c)."""


def _of_task(task: object, cls: type, method: str, attribute: str) -> object:
    """Return what a task tells about itself, through the C class's method or the Python class's attribute."""
    found = safe_access.slot(task, cls, method)
    if type(found) in _METHODS_IN_C:
        return found()
    namespace = safe_access.instance_dict(task)
    return None if namespace is None else namespace.get(attribute)


def _coroutine_name(coroutine: object) -> str | None:
    """Name the function of a coroutine: ``app.load``; None for other awaitables."""
    if type(coroutine) is not types.CoroutineType:
        return None
    frame = coroutine.cr_frame
    module = None if frame is None else safe_access.plain_text(frame.f_globals.get("__name__"))
    name = safe_access.cut_name(coroutine.__qualname__)
    return name if module is None else f"{safe_access.cut_name(module)}.{name}"


def between_loop_and_task(value: object) -> bool:
    """Tell whether `value` is part of how an event loop keeps its tasks: a built-in, or asyncio's."""
    module = safe_access.class_module(type(value))
    if type(value) is types.FunctionType:  # a user's own closure
        module = safe_access.plain_text(value.__module__)
    return module in (None, "builtins") or any(safe_access.is_within(module, name) for name in _LOOP_MODULES)


def callback_name(function: object) -> str:
    """Return the name of a callable without calling its attributes."""
    function, partials = unwrapped(function)
    name = safe_access.definition_name(function) or safe_access.class_label(type(function))
    return "functools.partial of " * partials + name


def _with_colon(steps: list[Step]) -> list[Step]:
    """Write steps after words: ``: args[0]`` for ``.args`` and ``[0]``."""
    if not steps:
        return []
    text, taken = f": {steps[0].text.removeprefix('.')}", 1
    if len(steps) > 1 and steps[1].text.startswith("["):
        text, taken = text + steps[1].text, 2
    return [Step(text, steps[0].label, steps[0].position), *steps[taken:]]


def kept_by_pytest(line: Line, text: str) -> tuple[str, list[Step]]:  # noqa: PLR0911 - a return for each place
    """Return root and steps of something that pytest keeps, in the words of a test's author."""
    steps = line.steps
    edges = [step.text for step in steps[:2]]
    first = edges[0] if edges else ""
    if edges == [".cached_result", "[0]"]:
        return text, steps[2:]
    if first in (".config", ".session"):  # every item has it, so the item says nothing
        return f"pytest {first[1:]}", steps[1:]
    if safe_access.class_label(type(line.objects.get(0))) == "_pytest.main.Session":
        if edges == ["._setupstate", ".stack"] and len(steps) > 4:
            function = line.objects[steps[5].position if len(steps) > 5 else line.end]
            return f"finalizer {callback_name(function)} given to {steps[2].text[1:-1]}", _with_colon(steps[5:])
        return "pytest session", steps
    ways = (["._instance"], ["._obj", ".__self__"], [".keywords", "._markers", "['__wrapped__']", ".__self__"])
    instance = next((len(way) for way in ways if [step.text for step in steps[: len(way)]] == way), None)
    if instance is not None:
        end = steps[instance].position if instance < len(steps) else line.end
        owner = safe_access.cut_name(safe_access.class_qualname(type(line.objects[end])))
        return f"{owner} instance kept by pytest", steps[instance:]
    if first == ".funcargs" and len(edges) == 2 and edges[1].startswith("["):
        return f"fixture {edges[1][1:-1]}", steps[2:]
    if first == ".user_properties":
        return f"user_properties of {text}", steps[1:]
    return text, steps

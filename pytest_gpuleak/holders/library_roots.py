"""Roots by the names that a reader knows them under, where the global that holds them is a library's own book.

`logging.Logger.manager.loggerDict['app']` is ``logging.getLogger('app')`` to everyone; what `weakref.finalize` and
asyncio keep is known by the callback and by the task. Nothing is rewritten that a user's own object stands in.
"""

from __future__ import annotations

import functools
import re
import types
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.holders import raw
from pytest_gpuleak.holders.chain import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.findings import HolderKind

_LOCAL: Final = re.compile(r"\.cr_frame\.f_locals\[(.*)\]")
_LOOP_MODULES: Final = ("asyncio", "_asyncio", "selectors", "uvloop", "functools", "collections")
"""Modules whose objects may lie between an event loop and a task; a user's own object there is the better root."""


class Renamed(NamedTuple):
    """A root under its better name: kind, text, the steps from there on, and whose code it is, where that is known."""

    kind: HolderKind
    text: str
    steps: list[Step]
    code: object = None


def rename(objects: Sequence[Any], text: str, steps: list[Step]) -> Renamed | None:
    """The better name of the root `text` above a chain, or None where it has none.

    Args:
        objects: the chain.
        text: the root's text.
        steps: the chain's edges.
    """
    namer = _NAMERS.get(text)
    return (None if namer is None else namer(objects, steps)) or _task(objects, steps)


def _logger(_: Sequence[Any], steps: list[Step]) -> Renamed | None:
    """A logger by its name; ``Logger.manager`` keeps all of them (Lib/logging/__init__.py, Manager)."""
    if len(steps) > 3 and [steps[0].text, steps[1].text] == [".manager", ".loggerDict"]:
        return Renamed("module", f"logging.getLogger({steps[2].text[1:-1]})", steps[3:])
    return None


def _finalizer(objects: Sequence[Any], steps: list[Step]) -> Renamed | None:
    """A finaliser by its callback and by the type that it waits for (Lib/weakref.py, finalize._Info)."""
    if len(steps) < 3 or steps[0].text != "._registry":
        return None
    info = objects[steps[2].position]
    if raw.resolve("weakref", "finalize._Info") is not type(info):
        return None
    function, reference = raw.slot(info, type(info), "func"), raw.slot(info, type(info), "weakref")
    referent = weakref.ReferenceType.__call__(reference) if raw.is_a(reference, weakref.ReferenceType) else None
    awaited = "" if referent is None else f" of {raw.definition_name(referent) or raw.class_label(type(referent))}"
    text = f"weakref.finalize callback {callback_name(function)}{awaited}"
    return Renamed("class", text, _with_colon(steps[2:]), function)


def _patch(objects: Sequence[Any], steps: list[Step]) -> Renamed | None:
    """A patch that was started and never stopped (Lib/unittest/mock.py, _patch.start)."""
    if len(steps) < 3 or steps[0].text != "._active_patches":
        return None
    namespace = raw.instance_dict(objects[steps[2].position])
    attribute = None if namespace is None else raw.plain_text(namespace.get("attribute"))
    return Renamed("class", f"unittest.mock.patch of {attribute!r}, not stopped", _with_colon(steps[2:]))


def _codec_error(objects: Sequence[Any], steps: list[Step]) -> Renamed | None:
    """An error handler, as `codecs` hands it out."""
    if steps and steps[0].text.startswith("["):
        return Renamed("module", f"codecs.lookup_error({steps[0].text[1:-1]})", steps[1:], objects[1])
    return None


_NAMERS: Final[dict[str, Callable[[Sequence[Any], list[Step]], Renamed | None]]] = {
    "logging.Logger": _logger,
    "weakref.finalize": _finalizer,
    "unittest.mock._patch": _patch,
    "codecs.register_error": _codec_error,
}
"""By the text of the root that they rename."""


def _task(objects: Sequence[Any], steps: list[Step]) -> Renamed | None:
    """A task that nothing but its event loop holds: by its name and its coroutine."""
    loop_class = raw.loaded_class("asyncio.events", "AbstractEventLoop")
    loop: int | None = None
    found: int | None = None
    for position, value in enumerate(objects):
        if loop_class is not None and raw.is_a(value, loop_class):
            loop = position
        elif loop is not None and _task_class(value) is not None:
            found = position
        elif loop is not None and not _between_loop_and_task(value):
            break
    task_class = None if found is None else _task_class(objects[found])
    if found is None or task_class is None:
        return None
    rest = [step for step in steps if step.position >= found]
    coroutine = _of_task(objects[found], task_class, "get_coro", "_coro")
    where = _coroutine_name(coroutine)
    text = f"asyncio task {raw.plain_text(_of_task(objects[found], task_class, 'get_name', '_name'))!r}"
    if where is not None and rest and rest[0].text in (".get_coro()", "._coro"):
        inside = _LOCAL.fullmatch(rest[1].text) if len(rest) > 1 else None
        if inside is not None:
            rest = [Step(f": local {inside.group(1)}", rest[1].label, rest[1].position), *rest[2:]]
        else:
            rest = _with_colon([Step(".coroutine", rest[0].label, rest[0].position), *rest[1:]])
    code = coroutine.cr_code if type(coroutine) is types.CoroutineType else None
    return Renamed("thread", text if where is None else f"{text} in {where}", rest, code)


def _task_class(value: object) -> type | None:
    """The class of asyncio's that makes `value` a task; None where it is none."""
    for module, name in (("_asyncio", "Task"), ("asyncio.tasks", "_PyTask")):
        cls = raw.loaded_class(module, name)
        if cls is not None and raw.is_a(value, cls):
            return cls
    return None


def _of_task(task: object, cls: type, method: str, attribute: str) -> object:
    """What a task tells about itself: by the method of the class written in C, by the attribute of the one that is not."""
    found = raw.slot(task, cls, method)
    if type(found) is types.BuiltinFunctionType:
        return found()
    namespace = raw.instance_dict(task)
    return None if namespace is None else namespace.get(attribute)


def _coroutine_name(coroutine: object) -> str | None:
    """Where a coroutine runs: ``app.load``; None for what is no plain coroutine."""
    if type(coroutine) is not types.CoroutineType:
        return None
    frame = coroutine.cr_frame
    module = None if frame is None else raw.plain_text(frame.f_globals.get("__name__"))
    name = coroutine.__qualname__
    return name if module is None else f"{module}.{name}"


def _between_loop_and_task(value: object) -> bool:
    """Whether `value` is part of how an event loop keeps its tasks: built in, or from asyncio."""
    module = raw.class_module(type(value))
    if type(value) is types.FunctionType:  # a user's own closure
        module = raw.plain_text(value.__module__)
    return module in (None, "builtins") or any(raw.is_within(module, name) for name in _LOOP_MODULES)


def callback_name(function: object) -> str:
    """A callable by the name that its user gave it, without asking it."""
    if type(function) is types.MethodType:
        return callback_name(function.__func__)
    if type(function) is functools.partial:
        return f"functools.partial of {callback_name(function.func)}"
    return raw.definition_name(function) or raw.class_label(type(function))


def _with_colon(steps: list[Step]) -> list[Step]:
    """Steps that go on from words: ``: args[0]`` for ``.args`` and ``[0]``."""
    if not steps:
        return []
    first = f": {steps[0].text.removeprefix('.')}"
    if len(steps) > 1 and steps[1].text.startswith("["):
        return [Step(first + steps[1].text, steps[0].label, steps[0].position), *steps[2:]]
    return [Step(first, steps[0].label, steps[0].position), *steps[1:]]


def kept_by_pytest(objects: Sequence[Any], text: str, steps: list[Step]) -> tuple[str, list[Step]]:
    """Root and steps of something that pytest keeps, named as the author of a test knows it."""
    edges = [step.text for step in steps[:2]]
    if edges == [".cached_result", "[0]"]:
        return text, steps[2:]
    instance: int | None = None
    if edges[:1] == ["._instance"]:
        instance = 1
    if edges == ["._obj", ".__self__"]:
        instance = 2
    if instance is not None:
        end = steps[instance].position if instance < len(steps) else len(objects) - 1
        return f"{raw.class_qualname(type(objects[end]))} instance kept by pytest", steps[instance:]
    if edges[:1] == [".funcargs"] and len(edges) == 2 and edges[1].startswith("["):
        return f"fixture {edges[1][1:-1]}", steps[2:]
    if edges[:1] == [".user_properties"]:
        return f"user_properties of {text}", steps[1:]
    return text, steps

"""A chain of objects below a root, as a `Holder`: root, text, steps, and the pattern by which like paths are grouped."""

from __future__ import annotations

import functools
import re
import types
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.findings import Holder, PathStep
from pytest_gpuleak.holders import raw
from pytest_gpuleak.holders.chain import Chain, Lookups, Step
from pytest_gpuleak.holders.deciding import MODULE_MARK, with_text
from pytest_gpuleak.holders.edges import name_edge
from pytest_gpuleak.holders.frames import without_comprehensions
from pytest_gpuleak.holders.library_roots import kept_by_pytest, rename
from pytest_gpuleak.holders.places import Places
from pytest_gpuleak.holders.runtime_edges import lost_namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.findings import HolderKind
    from pytest_gpuleak.holders.roots import Root

_PLAIN_KEY: Final = re.compile(r"\['([^'\\]+)'\]")
_INDEX: Final = re.compile(r"\[-?\d+\]")
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")
_NUMBERED: Final = re.compile(r"(?<=[A-Za-z_])-\d+")
_CALLBACKS: Final = (types.FunctionType, types.MethodType, functools.partial)
_MOCK_ATTRIBUTES: Final = {
    "._mock_call_args": ".call_args",
    "._mock_call_args_list": ".call_args_list",
    "._mock_mock_calls": ".mock_calls",
    "._mock_return_value": ".return_value",
    "._mock_side_effect": ".side_effect",
    "._mock_wraps": "._mock_wraps",
}
"""Where `unittest.mock` keeps what a test reads under another name (Lib/unittest/mock.py, _delegating_property)."""


class Writer:
    """Writes the holders of one search. It refers to objects of the heap: drop it after the search.

    Args:
        known: names of edges that only their finder knows, by the ids of parent and child.
    """

    def __init__(self, known: dict[tuple[int, int], str]) -> None:
        self._known = known
        self._lookups = Lookups()
        self._places = Places()

    def announce(self, objects: Sequence[object]) -> None:
        """Note a chain that `holder` will be asked for: what chains have in common is then looked up once."""
        self._lookups.announce(objects)

    def holder(self, objects: Sequence[object], root: Root) -> Holder:
        """The holder for a chain whose first object is the one that `root` is attached to."""
        steps = self._steps(objects)
        kind, text = root.kind, root.text
        file, line = root.file, root.line
        if file is None:
            file, line = self._places.of_function(objects[0])
        if file is None:
            file, line = self._places.of_name(root.module, root.name)
        renamed = rename(objects, text, steps)
        if renamed is not None:
            file, line = self._places.of_function(renamed.code)
            return _holder(renamed.kind, renamed.text, renamed.text, renamed.steps, file, line)
        if root.kind == "fixture":
            text, steps = kept_by_pytest(objects, text, steps)
            namespace = raw.instance_dict(objects[0])
            file, line = self._places.of_function(None if namespace is None else namespace.get("func"))
        if root.kind in ("fixture", "frame", "thread"):
            pinned = _first_traceback(objects, bare=root.kind == "fixture")
            if pinned is not None:
                kind, text = "traceback", _pinned_text(objects[pinned])
                steps = _after(steps, pinned)
                file, line = None, None
        if kind in ("module", "class") and steps and steps[0].text.startswith(".") and raw.is_a(objects[0], type):
            kind, text = "class", text + steps[0].text
            if root.module is not None:
                name = raw.class_qualname(objects[0]) + steps[0].text  # type: ignore[arg-type]  # a class, as checked
                file, line = self._places.of_name(root.module, name)
            steps = steps[1:]
        root_text = text
        if kind in ("module", "class", "cache"):
            for index, step in enumerate(steps):
                if step.text.startswith(" (cache") and type(objects[step.position]) is raw.LRU_WRAPPER:
                    kind, root_text = "cache", text + _join(steps[:index])
                    text, steps = root_text, steps[index:]
                    file, line = self._places.of_function(objects[step.position])
                    break
        return _holder(kind, root_text, text, steps, file, line)

    def rootless(self, objects: Sequence[object], kind: HolderKind, root: str) -> Holder:
        """The holder for a chain that no root was found above."""
        # Whose array the collector cannot see (Modules/atexitmodule.c), and no one but atexit's users would think of.
        callback = kind == "native" and type(objects[0]) in _CALLBACKS
        text = f"{root}{' (atexit, or another list of callbacks)' if callback else ''} -> {_described(objects[0])}"
        return _holder(kind, root, text, self._steps(objects), None, None)

    def _steps(self, objects: Sequence[object]) -> list[Step]:
        """The edges of a chain, folded as a person would write them."""
        chain = Chain(objects, self._lookups)
        steps: list[Step] = []
        position = 0
        while position < len(objects) - 1:
            known = self._known.get((id(objects[position]), id(objects[position + 1])))
            if known is not None:
                steps.append(Step(known, chain.label(position), position))
                position += 1
                continue
            edge = name_edge(chain, position)
            _append(steps, Step(_library_text(objects[position], edge.text), edge.label, position), objects)
            position += edge.length
        return steps


def pattern_of(text: str) -> str:
    """A path's text without what differs between like paths and between runs: indices, addresses, threads' numbers."""
    return _NUMBERED.sub("-*", _ADDRESS.sub("0x*", _INDEX.sub("[*]", text)))


def _holder(
    kind: HolderKind, root: str, text: str, steps: Sequence[Step], file: str | None, line: int | None
) -> Holder:
    """The holder made of its parts; `text` is what the steps go on from."""
    path = tuple([PathStep(step.text, step.label) for step in steps])
    return with_text(Holder(kind, root, text, path, file, line))


def _described(value: object) -> str:
    """What a path without a root begins with: a function or a class by its name, anything else by its type."""
    if type(value) is types.FunctionType:
        name = without_comprehensions(value.__qualname__)
        module = raw.plain_text(value.__module__)
        namespace = raw.module_dict(raw.loaded_module(module)) if module is not None else None
        if namespace is value.__globals__:
            return f"function {module}.{name}"
        return f"function {name} of {lost_namespace(value.__globals__)}"
    if raw.is_a(value, type):
        return f"class {raw.class_label(value)}"  # type: ignore[arg-type]  # a class, as was just checked
    if type(value) is dict and any(type(key) is str and key == "__builtins__" for key in dict.keys(value)):
        return lost_namespace(value)
    return raw.public_label(type(value))


def _join(steps: Sequence[Step]) -> str:
    """The text of some steps."""
    return "".join([step.text for step in steps])


def _after(steps: Sequence[Step], position: int) -> list[Step]:
    """The steps that lead from the object at `position` on."""
    return [step for step in steps if step.position >= position]


def _first_traceback(objects: Sequence[object], *, bare: bool) -> int | None:
    """Position of the exception whose traceback a chain passes through, or of the traceback itself; else None.

    With `bare` an exception will do: what pytest and its plugins keep of a failed test holds its arguments too.
    """
    error: int | None = None
    for position, value in enumerate(objects):
        if raw.is_a(value, BaseException) and error is None:
            error = position
        if type(value) is types.TracebackType:
            return position if error is None else error
    return error if bare else None


def _pinned_text(value: object) -> str:
    """How an exception, or a traceback that none refers to, is written as a root."""
    return "traceback" if type(value) is types.TracebackType else f"exception {raw.class_name(type(value))}"


def _library_text(parent: object, text: str) -> str:
    """An edge of `unittest.mock` by its public name, else `text`."""
    mock = raw.loaded_class("unittest.mock", "NonCallableMock")
    if mock is None:
        return text
    if text in _MOCK_ATTRIBUTES and raw.is_a(parent, mock):
        return _MOCK_ATTRIBUTES[text]
    call = raw.loaded_class("unittest.mock", "_Call")
    if call is not None and raw.is_a(parent, call) and _INDEX.fullmatch(text):
        # A call is (args, kwargs) or (name, args, kwargs).
        from_end = tuple.__len__(parent) - int(text[1:-1])  # type: ignore[arg-type]  # a subclass of tuple
        return {2: ".args", 1: ".kwargs"}.get(from_end, text)
    return text


def _append(steps: list[Step], step: Step, objects: Sequence[Any]) -> None:
    """Add a step; together with the one before it may become one: ``._modules['layer']`` is ``.layer``."""
    key = _PLAIN_KEY.fullmatch(step.text)
    before = steps[-1] if steps else None
    if key is None or before is None:
        steps.append(step)
        return
    name, owner = key.group(1), objects[before.position]
    folded: str | None = None
    label = before.label
    if before.text in ("._modules", "._parameters", "._buffers") and _is_module(owner, "Module"):
        label += MODULE_MARK
        if raw.is_attribute_name(name):
            folded = f".{name}"
        if name.isdigit() and _is_module(owner, "Sequential", "ModuleList", "ParameterList"):
            folded = f"[{name}]"
        if _is_module(owner, "ModuleDict", "ParameterDict"):
            folded = f"[{name!r}]"
    if before.text == "._mock_children" and raw.is_attribute_name(name):
        folded = f".{name}"
    if folded is None:
        steps.append(step)
    else:
        steps[-1] = Step(folded, label, before.position)


def _is_module(value: object, *names: str) -> bool:
    """Whether a type of torch.nn by one of these names is among the bases of `value`; torch is not asked for."""
    return any(raw.class_name(cls) in names and raw.in_package(cls, "torch.nn.modules") for cls in raw.mro(type(value)))

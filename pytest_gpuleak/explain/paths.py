"""Write a path below a root as a `Holder`: root, text, steps, and the pattern that groups similar paths."""

from __future__ import annotations

import functools
import re
import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.explain.definitions import Places
from pytest_gpuleak.explain.edge_to_edit import (
    MAX_EDGES,
    MAX_TEXT,
    REGISTERED,
    SHOWN_AT_ENDS,
    edge_to_edit,
    is_users,
    omitted_edges,
    with_text,
)
from pytest_gpuleak.explain.edges.chain import Line, Step
from pytest_gpuleak.explain.edges.interpreter import namespace_label
from pytest_gpuleak.explain.roots.library_names import callback_name, kept_by_pytest, rename
from pytest_gpuleak.explain.source_lines import line_of_hook
from pytest_gpuleak.explain.ways import HEAD, Walker
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.frames import without_comprehensions
from pytest_gpuleak.model.findings import Holder, PathStep
from pytest_gpuleak.model.source_files import is_installed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuleak.explain.edges.chain import Met
    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.explain.ways import Reached, Way
    from pytest_gpuleak.model.findings import HolderKind

FULL_EDGES: Final = 100_000
"""References that a search writes in paths longer than `MAX_EDGES`; of further long paths only the ends."""

MAX_ROOT_EDGES: Final = 40
"""References in the name of a root that is itself at the end of a path, such as a cache in an object."""

_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")
_NUMBERED: Final = re.compile(r"(?<=[A-Za-z_])-\d+")
_INDEX: Final = re.compile(r"\[-?\d+\]")
_CALLBACKS: Final = (types.FunctionType, types.MethodType, functools.partial, tuple)

UNFINISHED: Final = " … (not explained in full: the search met its limit of objects)"
"""End of a holder's text whose root is known, but whose path was not written: the budget was spent."""

_RUNNERS: Final = ("_pytest", "pluggy", "unittest")
"""Packages whose frames catch a test's error (_pytest/runner.py, CallInfo.from_call; unittest/case.py, _Outcome)."""

_INFO: Final = "_pytest._code.code.ExceptionInfo"


class _Heading(NamedTuple):
    """A root as it is written, and the references that follow it; `edit` is the place of a hook among them."""

    kind: HolderKind
    root: str
    text: str
    steps: list[Step]
    file: str | None
    line: int | None
    edit: tuple[str | None, int | None] = (None, None)


class _LongHead(NamedTuple):
    """The common beginning of long paths: `lost` references are not written, the ids of the objects `kept` are its key."""

    heading: _Heading
    shown: list[PathStep]
    lost: int
    kept: tuple[Way, Met, Root]


class Writer:
    """Write the holders of one search. It refers to objects of the heap: drop it after the search."""

    def __init__(self, known: Mapping[tuple[int, int], str]) -> None:
        self.walker = Walker(known)
        self.places = Places()
        self._root_places: dict[tuple[int, int], tuple[str | None, int | None]] = {}
        self._full_edges = FULL_EDGES
        self._long_heads: dict[tuple[int, int, int], _LongHead | None] = {}

    def holder(self, objects: Sequence[object], root: Root) -> Holder:
        """Return the holder for a chain that begins with the root's object."""
        return self.write(self.walker.follow(objects), root, objects[0])

    def write(self, reached: Reached, root: Root, first: object) -> Holder:
        """Return the holder for a path that `walker` has followed."""
        way = self.walker.finish(reached)
        count = 0 if way is None else way.count
        if way is None or count <= MAX_EDGES or count <= self._full_edges:
            if count > MAX_EDGES:
                self._full_edges -= count
            return _holder(self._heading(_line([] if way is None else way.last(count), reached), root, first))
        if not (way.cache or reached.met.error or reached.met.pinned or reached.met.task):
            long = self._long_head(way, reached, root, first)
            if long is not None:
                return _long_holder(long, way)
        return _holder(self._heading(_ends(way, reached), root, first))

    def rootless(self, objects: Sequence[object], kind: HolderKind, root: str) -> Holder:
        """Return the holder for a chain without a root above it."""
        # Most likely atexit's array, which the collector cannot see (Modules/atexitmodule.c): functions, and their arguments.
        callback = kind == "native" and type(objects[0]) in _CALLBACKS
        text = f"{root}{' (atexit, or another list of callbacks)' if callback else ''} -> {describe(objects[0])}"
        way = self.walker.finish(self.walker.follow(objects))
        steps = [] if way is None else [step.shown for step in way.last(way.count)]
        return with_text(Holder(kind, root, text, tuple(steps), None, None))

    def _heading(self, line: Line, root: Root, first: object) -> _Heading:
        steps = line.steps
        kind, text = root.kind, root.text
        file, number = self._place_of_root(root, first)
        renamed = rename(line, text)
        if renamed is not None:
            file, number = self.places.of_function(renamed.code)
            return _Heading(renamed.kind, renamed.text, renamed.text, renamed.steps, file, number)
        if root.kind == "fixture":
            text, steps = kept_by_pytest(line, text)
            namespace = safe_access.instance_dict(first)
            file, number = self.places.of_function(None if namespace is None else namespace.get("func"))
        pinned = _left_by_failure(line, root.kind)
        if pinned is not None:
            kind, text = "traceback", _pinned_text(pinned[1])
            steps = [step for step in steps if step.position >= pinned[0]]
            file, number = None, None
        if kind in ("module", "class") and steps and steps[0].text.startswith(".") and safe_access.is_a(first, type):
            kind, text = "class", text + steps[0].text
            if root.module is not None:
                name = safe_access.class_qualname(first) + steps[0].text  # type: ignore[arg-type]  # a class, as checked
                file, number = self.places.of_name(root.module, name)
            steps = steps[1:]
        root_text = text
        if kind in ("module", "class", "cache"):
            for index, step in enumerate(steps):
                if step.cached:
                    kind, root_text = "cache", text + _join(steps[:index])
                    text, steps = root_text, steps[index:]
                    file, number = self.places.of_function(line.objects.get(step.position))
                    break
        edit = self._place_of_hook(line, steps, is_library=file is not None and is_installed(file))
        return _Heading(kind, root_text, text, steps, file, number, edit)

    def _place_of_root(self, root: Root, first: object) -> tuple[str | None, int | None]:
        if root.file is not None:
            return root.file, root.line
        place = (id(root), id(first))
        if place not in self._root_places:
            found = self.places.of_function(first)
            # What a library's decorator has returned is defined under its name.
            if found[0] is None or is_installed(found[0]):
                by_name = self.places.of_name(root.module, root.name)
                found = found if by_name[0] is None else by_name
            self._root_places[place] = found
        found = self._root_places[place]
        if found[0] is None and root.text.startswith(REGISTERED):  # an object that can be called
            kind = type(first)
            return self.places.of_name(safe_access.class_module(kind), safe_access.class_qualname(kind))
        return found

    def _place_of_hook(self, line: Line, steps: Sequence[Step], *, is_library: bool) -> tuple[str | None, int | None]:
        for index, step in enumerate(steps[:-2]):
            if "_hooks" in step.text and steps[index + 1].text.startswith("["):
                hook = line.objects.get(steps[index + 2].position)
                file, number = self.places.of_function(hook)
                if file is None:
                    break
                return file, line_of_hook(file, callback_name(hook).rpartition(".")[2]) or number
        return self._place_of_registered(line, steps) if is_library else (None, None)

    def _place_of_registered(self, line: Line, steps: Sequence[Step]) -> tuple[str | None, int | None]:
        """Return the place of the user's function that a library's own objects keep, with its decorator."""
        for step in steps:
            value = line.objects.get(step.position)
            if type(value) is types.FunctionType:
                file, number = self.places.of_function(value)
                if file is not None and not is_installed(file):
                    return file, number
            elif is_users(step.label):
                break
        return None, None

    def _long_head(self, way: Way, reached: Reached, root: Root, first: object) -> _LongHead | None:
        """Return the beginning that paths like `way` share; None where it does not determine the root's name."""
        if way.head is None or way.count <= 2 * HEAD:
            return None
        key = (id(way.head), id(reached.met), id(root))
        if key not in self._long_heads:
            heading = self._heading(_ends(way, reached), root, first)
            labels = [step.label for step in heading.steps]
            begin = labels.index("") if "" in labels else 0  # where references are left out
            long: _LongHead | None = None
            if begin >= SHOWN_AT_ENDS:
                head = [PathStep(step.text, step.label) for step in heading.steps[:begin]]
                shown, lost = head[:SHOWN_AT_ENDS], begin - SHOWN_AT_ENDS
                marked = edge_to_edit(Holder(heading.kind, heading.root, "", tuple(head)))
                # Of attributes the last one is to be edited, and it lies at the other end.
                if marked is not None and marked >= SHOWN_AT_ENDS and not head[marked].edge.startswith("."):
                    if marked > SHOWN_AT_ENDS:
                        shown.append(PathStep(omitted_edges(marked - SHOWN_AT_ENDS), ""))
                    shown.append(head[marked])
                    lost = begin - marked - 1
                long = _LongHead(heading, shown, lost, (way.head, reached.met, root))
            self._long_heads[key] = long
        return self._long_heads[key]


def unfinished(root: Root) -> Holder:
    """Return the holder for a path that was not written, because the budget was spent."""
    return Holder(root.kind, root.text, root.text + UNFINISHED, (), root.file, root.line)


def pattern_of(text: str) -> str:
    """Remove from a path's text what differs between similar paths and runs: indices, addresses, threads' numbers."""
    return _NUMBERED.sub("-*", _ADDRESS.sub("0x*", _INDEX.sub("[*]", text)))


def _line(ways: Sequence[Way], reached: Reached) -> Line:
    objects = {way.step.position: way.owner for way in ways}
    objects[reached.end] = reached.uncertain[-1]
    return Line([way.step for way in ways], objects, reached.end, reached.met)


def _ends(way: Way, reached: Reached) -> Line:
    begin = [] if way.head is None else way.head.last(HEAD)
    end = way.last(min(HEAD, way.count - len(begin)))
    line = _line([*begin, *end], reached)
    omitted = way.count - len(begin) - len(end)
    if omitted:
        line.steps.insert(len(begin), Step(omitted_edges(omitted), "", end[0].step.position - 1))
    return line


def _long_holder(long: _LongHead, way: Way) -> Holder:
    end = [step.shown for step in way.last(SHOWN_AT_ENDS)]
    omitted = long.lost + way.count - HEAD - len(end)
    middle = [PathStep(omitted_edges(omitted), "")] if omitted else []
    path = (*long.shown, *middle, *end)
    return _written(long.heading, long.heading.text + "".join([step.edge for step in path]), path)


def _holder(heading: _Heading) -> Holder:
    path = tuple([PathStep(step.text, step.label) for step in heading.steps])
    text = heading.text + "".join([step.edge for step in path])
    is_short = len(path) <= MAX_EDGES and len(text) <= MAX_TEXT
    found = _written(heading, text if is_short else heading.text, path)
    return found if is_short else with_text(found)


def _written(heading: _Heading, text: str, path: tuple[PathStep, ...]) -> Holder:
    return Holder(heading.kind, heading.root, text, path, heading.file, heading.line, None, *heading.edit)


def describe(value: object) -> str:
    """Describe the first object of a path without a root: a function or class by name, else the type."""
    if type(value) is types.FunctionType:
        name = without_comprehensions(safe_access.cut_name(value.__qualname__))
        module = safe_access.plain_text(value.__module__)
        namespace = safe_access.module_dict(safe_access.loaded_module(module)) if module is not None else None
        if namespace is value.__globals__:
            return f"function {safe_access.cut_name(module or '')}.{name}"
        return f"function {name} of {namespace_label(value.__globals__)}"
    if safe_access.is_a(value, type):
        return f"class {safe_access.class_label(value)}"  # type: ignore[arg-type]  # a class, as was just checked
    if type(value) is dict and any(type(key) is str and key == "__builtins__" for key in dict.keys(value)):
        return namespace_label(value)
    return safe_access.public_label(type(value))


def _join(steps: Sequence[Step]) -> str:
    texts = [step.text for step in steps]
    if len(texts) > MAX_ROOT_EDGES:
        texts[SHOWN_AT_ENDS:-SHOWN_AT_ENDS] = [omitted_edges(len(texts) - 2 * SHOWN_AT_ENDS)]
    return "".join(texts)


def _pinned_text(value: object) -> str:
    return "traceback" if type(value) is types.TracebackType else f"exception {safe_access.class_name(type(value))}"


def _left_by_failure(line: Line, kind: HolderKind) -> tuple[int, Any] | None:
    """Return a failed test's exception or traceback on a path, with its position; None where user code keeps it."""
    if kind == "frame":
        return line.met.pinned
    if kind not in ("fixture", "thread"):
        return None
    # pytest keeps a failed test's exception with its arguments, also without a traceback.
    found = line.met.pinned or (line.met.error if kind == "fixture" else None)
    if found is None or (kind == "fixture" and _is_users_value(line)):
        return None
    before = [value for position, value in line.objects.items() if position < found[0]]
    if kind == "fixture" and any(safe_access.class_label(type(value)) == _INFO for value in before):
        return found
    return found if _caught_by_runner(line, found) else None


def _is_users_value(line: Line) -> bool:
    """Tell whether a path leads through a fixture's value (not pytest's own `pytestconfig`) or a test's instance."""
    edges = [step.text for step in line.steps[:2]]
    if edges[:1] == ["._instance"] or edges == ["._obj", ".__self__"]:
        return True
    if edges != [".cached_result", "[0]"]:
        return False
    value = line.objects.get(line.steps[2].position if len(line.steps) > 2 else line.end)
    return not safe_access.in_package(type(value), "_pytest")


def _caught_by_runner(line: Line, found: tuple[int, Any]) -> bool:
    """Tell whether the first traceback of the exception `found`, or below it, begins in a test runner's frame."""
    below = sorted(position for position in line.objects if position > found[0])
    for value in (found[1], *[line.objects[position] for position in below]):
        is_error = safe_access.is_a(value, BaseException)
        trace = safe_access.slot(value, BaseException, "__traceback__") if is_error else value
        if type(trace) is types.TracebackType:
            module = safe_access.plain_text(trace.tb_frame.f_globals.get("__name__"))
            return module is not None and any(safe_access.is_within(module, name) for name in _RUNNERS)
    return False

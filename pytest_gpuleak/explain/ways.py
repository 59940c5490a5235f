"""The edges from a root down to many objects, each named once: paths that begin alike share what they have in common.

A linked list of 100,000 nodes has 100,000 paths of up to 100,000 edges. So a path is kept as its last edge and the path
before it, and going on from an object names the edges that have become certain, whatever follows.
"""

from __future__ import annotations

import re
import types
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.registry import own_layouts
from pytest_gpuleak.explain.edges.chain import NOTHING_MET, Chain, Met, Step
from pytest_gpuleak.explain.edges.edges import name_edge
from pytest_gpuleak.explain.edges.lookups import Lookups
from pytest_gpuleak.explain.roots.library_names import between_loop_and_task, task_class
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.model.findings import PathStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HEAD: Final = 8
"""Edges at the beginning of a long path that are known without going back to its root."""

_MAX_UNCERTAIN: Final = 16
"""Objects that an edge may wait for until it is certain; the longest known is a context's (`explain.edges.interpreter`)."""

_LAYOUTS: Final = own_layouts()
_FOLDED_AWAY: Final = (*(f".{name}" for layout in _LAYOUTS for name in layout.names), "._mock_children")
_PLAIN_KEY: Final = re.compile(r"\['([^'\\]+)'\]")
_INDEX: Final = re.compile(r"\[-?\d+\]")
_MOCK_ATTRIBUTES: Final = {
    "._mock_call_args": ".call_args",
    "._mock_call_args_list": ".call_args_list",
    "._mock_mock_calls": ".mock_calls",
    "._mock_return_value": ".return_value",
    "._mock_side_effect": ".side_effect",
    "._mock_wraps": "._mock_wraps",
}
"""Where `unittest.mock` keeps what a test reads under another name (Lib/unittest/mock.py, _delegating_property)."""


class Way:
    """The edges from a root down to some object: the last of them, and the way before it.

    Attributes:
        step: the last edge.
        owner: the object that the edge leads from.
        above: the way without this edge; None where it is the first.
        count: how many edges there are.
        head: the way of the first `HEAD` edges, where there are more.
        cache: the way that ends with the first edge into an `lru_cache`, if there is one.
    """

    __slots__ = ("_shown", "above", "cache", "count", "head", "owner", "step")

    def __init__(self, step: Step, owner: Any, above: Way | None) -> None:
        self.step = step
        self._shown: PathStep | None = None
        self.owner = owner
        self.above = above
        self.count: int = 1 if above is None else above.count + 1
        self.head: Way | None = None
        self.cache: Way | None = None
        if above is not None:
            self.head = above if above.count == HEAD else above.head
            self.cache = above.cache or (above if above.enters_cache else None)

    @property
    def enters_cache(self) -> bool:
        """Whether the last edge leads into an `lru_cache`."""
        return self.step.text.startswith(" (cache") and type(self.owner) is safe_access.LRU_WRAPPER

    @property
    def shown(self) -> PathStep:
        """The last edge as a report shows it."""
        if self._shown is None:
            self._shown = PathStep(self.step.text, self.step.label)
        return self._shown

    def last(self, count: int) -> list[Way]:
        """The ways that end with the last `count` edges, in their order."""
        found: list[Way] = []
        way: Way | None = self
        while way is not None and len(found) < count:
            found.append(way)
            way = way.above
        found.reverse()
        return found


class Reached:
    """How far down a path has been followed.

    Attributes:
        way: the edges that are certain; None where none is.
        uncertain: the objects from the end of those on; the last is where the path has come to.
        position: of the first of them, from the root's own object, which has 0.
        met: what was met so far.
    """

    __slots__ = ("met", "position", "uncertain", "way")

    def __init__(self, way: Way | None, uncertain: tuple[Any, ...], position: int, met: Met) -> None:
        self.way = way
        self.uncertain = uncertain
        self.position = position
        self.met = met

    @property
    def end(self) -> int:
        """The position of the last object."""
        return self.position + len(self.uncertain) - 1


class Walker:
    """Follows paths down and names their edges. It refers to objects of the heap: drop it after the search.

    Args:
        known: names of edges that only their finder knows, by the ids of parent and child.
    """

    def __init__(self, known: Mapping[tuple[int, int], str]) -> None:
        self._known = known
        self._lookups = Lookups()
        self._mocks_are_known = safe_access.loaded_class("unittest.mock", "NonCallableMock") is not None

    def announce(self, parent: int, child: int) -> None:
        """Note the ids of two objects whose edge will be asked for: what edges have in common is then looked up once."""
        self._lookups.announce(parent, child)

    def begin(self, value: object) -> Reached:
        """The start of a path: the root's own object."""
        return Reached(None, (value,), 0, self._met(NOTHING_MET, value, 0))

    def go_on(self, reached: Reached, value: object) -> Reached:
        """A path one object further; `reached` stays as it is, for other paths that go on from there."""
        met = self._met(reached.met, value, reached.position + len(reached.uncertain))
        return self._name(reached.way, (*reached.uncertain, value), reached.position, met, final=False)

    def finish(self, reached: Reached) -> Way | None:
        """The whole way to where a path has come to; None where that is the root's own object."""
        if len(reached.uncertain) == 1:
            return reached.way
        return self._name(reached.way, reached.uncertain, reached.position, reached.met, final=True).way

    def follow(self, objects: Iterable[object]) -> Reached:
        """A path from its first object to its last."""
        following = iter(objects)
        reached = self.begin(next(following))
        for value in following:
            reached = self.go_on(reached, value)
        return reached

    def _name(self, way: Way | None, uncertain: tuple[Any, ...], position: int, met: Met, *, final: bool) -> Reached:
        """Name the edges that are certain: those that no further object could change, or all if the path ends here."""
        while len(uncertain) > 1:
            owner = uncertain[0]
            text = self._known.get((id(owner), id(uncertain[1]))) if self._known else None
            if text is not None:
                way = Way(Step(text, self._lookups.label(type(owner)), position), owner, way)
                length = 1
            else:
                chain = Chain(uncertain, self._lookups)
                edge = name_edge(chain, 0)
                if chain.looked_beyond and not final and len(uncertain) < _MAX_UNCERTAIN:
                    break
                length = min(edge.length, len(uncertain) - 1)
                step = Step(self._library_text(owner, edge.text), edge.label, position)
                way = _folded(way, step) or Way(step, owner, way)
            uncertain = uncertain[length:]
            position += length
        return Reached(way, uncertain, position, met)

    def _library_text(self, parent: object, text: str) -> str:
        """An edge of `unittest.mock` by its public name, else `text`."""
        if not self._mocks_are_known:
            return text
        kind = self._lookups.once("mock", type(parent), lambda: _kind_of_mock(type(parent)))
        if kind == "mock":
            return _MOCK_ATTRIBUTES.get(text, text)
        if kind == "call" and _INDEX.fullmatch(text):
            # A call is (args, kwargs) or (name, args, kwargs).
            from_end = tuple.__len__(parent) - int(text[1:-1])  # type: ignore[arg-type]  # a subclass of tuple
            return {2: ".args", 1: ".kwargs"}.get(from_end, text)
        return text

    def _met(self, met: Met, value: object, position: int) -> Met:
        """What was met, with the object at `position`."""
        kind = self._lookups.once("kind", type(value), lambda: _kind_for_root(value))
        if kind == "" and (met.loop is None or met.left):
            return met
        if kind == "error" and met.error is None and met.pinned is None:
            met = met._replace(error=(position, value))
        if kind == "traceback" and met.pinned is None:
            met = met._replace(pinned=met.error or (position, value))
        if met.left:
            return met
        if kind == "loop":
            return met._replace(loop=position)
        if met.loop is not None and kind == "task":
            return met._replace(task=(position, value))
        if met.loop is not None and not between_loop_and_task(value):
            return met._replace(left=True)
        return met


def _kind_for_root(value: object) -> str:
    """What an object is to the name of the root above it: empty for most."""
    kind = type(value)
    if safe_access.is_subclass(kind, BaseException):
        return "error"
    if kind is types.TracebackType:
        return "traceback"
    loop = safe_access.loaded_class("asyncio.events", "AbstractEventLoop")
    if loop is not None and safe_access.is_subclass(kind, loop):
        return "loop"
    return "task" if task_class(value) is not None else ""


def _kind_of_mock(kind: type) -> str:
    """Whether a type is one of `unittest.mock`'s: of a mock, of a call, or of neither."""
    mock = safe_access.loaded_class("unittest.mock", "NonCallableMock")
    if mock is None:
        return ""
    if safe_access.is_subclass(kind, mock):
        return "mock"
    call = safe_access.loaded_class("unittest.mock", "_Call")
    return "call" if call is not None and safe_access.is_subclass(kind, call) else ""


def _folded(before: Way | None, step: Step) -> Way | None:
    """The way on which a step and the one before it are one: ``._modules['layer']`` is ``.layer``; else None."""
    if before is None or before.step.text not in _FOLDED_AWAY:
        return None
    key = _PLAIN_KEY.fullmatch(step.text)
    if key is None:
        return None
    name, owner, last = key.group(1), before.owner, before.step
    folded: str | None = None
    label = last.label
    for layout in _LAYOUTS:
        if last.text[1:] in layout.names and layout.keeps_parts(owner):
            label += layout.mark
            folded = layout.edge(owner, name)
    if last.text == "._mock_children" and safe_access.is_attribute_name(name):
        folded = f".{name}"
    return None if folded is None else Way(Step(folded, label, last.position), owner, before.above)

"""Paths from a root down to many objects, with shared beginnings (a list of 100,000 nodes has as many paths)."""

from __future__ import annotations

import re
import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
"""References at the beginning of a long path that are known without going back to its root."""

_MAX_UNCERTAIN: Final = 16
"""Objects that a reference may wait for until its name is certain; a context's takes the most."""

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
"""Public names of `unittest.mock`'s private attributes (Lib/unittest/mock.py, _delegating_property)."""


class Way:
    """A path from a root to an object: its last reference `step`, the path `above`, and the first `HEAD` as `head`.

    `cache` is the path up to the first reference into an `lru_cache`, if any.
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
            self.cache = above.cache or (above if above.step.cached else None)

    @property
    def shown(self) -> PathStep:
        """Return the last reference as a report shows it."""
        if self._shown is None:
            self._shown = PathStep(self.step.text, self.step.label)
        return self._shown

    def last(self, count: int) -> list[Way]:
        """Return the paths that end with the last `count` references, in order."""
        found: list[Way] = []
        way: Way | None = self
        while way is not None and len(found) < count:
            found.append(way)
            way = way.above
        found.reverse()
        return found


class Reached(NamedTuple):
    """How far down a path has been followed: `way` has references with certain names, `uncertain` the objects after.

    `position` is that of the first of these objects; the root's object has 0.
    """

    way: Way | None
    uncertain: tuple[Any, ...]
    position: int
    met: Met

    @property
    def end(self) -> int:
        """Return the position of the last object."""
        return self.position + len(self.uncertain) - 1


class Walker:
    """Follow paths down and name their references. It refers to objects of the heap: drop it after the search."""

    def __init__(self, known: Mapping[tuple[int, int], str]) -> None:
        self._known = known
        self._lookups = Lookups()

    def announce(self, parent: int, child: int) -> None:
        """Announce that the reference between two objects, by their ids, will be named, so that lookups are shared."""
        self._lookups.announce(parent, child)

    def begin(self, value: object) -> Reached:
        """Return the beginning of a path: the root's object."""
        return Reached(None, (value,), 0, self._met(NOTHING_MET, value, 0))

    def go_on(self, reached: Reached, value: object) -> Reached:
        """Return a path one object further. `reached` stays unchanged for other paths."""
        met = self._met(reached.met, value, reached.position + len(reached.uncertain))
        return self._name(reached.way, (*reached.uncertain, value), reached.position, met, final=False)

    def finish(self, reached: Reached) -> Way | None:
        """Return the whole path with all names; None where it is the root's object alone."""
        if len(reached.uncertain) == 1:
            return reached.way
        return self._name(reached.way, reached.uncertain, reached.position, reached.met, final=True).way

    def follow(self, objects: Iterable[object]) -> Reached:
        """Return the path along a chain of objects."""
        first, *following = objects
        reached = self.begin(first)
        for value in following:
            reached = self.go_on(reached, value)
        return reached

    def _name(self, way: Way | None, uncertain: tuple[Any, ...], position: int, met: Met, *, final: bool) -> Reached:
        """Name the references that no further object could change, or all if the path ends here."""
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
                step = Step(self._library_text(owner, edge.text), edge.label, position, edge.cached)
                way = _folded(way, step) or Way(step, owner, way)
            uncertain = uncertain[length:]
            position += length
        return Reached(way, uncertain, position, met)

    def _library_text(self, parent: object, text: str) -> str:
        kind = self._lookups.once("mock", type(parent), lambda: _kind_of_mock(type(parent)))
        if kind == "mock":
            return _MOCK_ATTRIBUTES.get(text, text)
        if kind == "call" and _INDEX.fullmatch(text):
            # A call is (args, kwargs) or (name, args, kwargs).
            from_end = tuple.__len__(parent) - int(text[1:-1])  # type: ignore[arg-type]  # a subclass of tuple
            return {2: ".args", 1: ".kwargs"}.get(from_end, text)
        return text

    def _met(self, met: Met, value: object, position: int) -> Met:
        kind = self._lookups.once("kind", type(value), lambda: _kind_for_root(value))
        if kind == "error" and met.error is None and met.pinned is None:
            met = met._replace(error=(position, value))
        if kind == "traceback" and met.pinned is None:
            met = met._replace(pinned=met.error or (position, value))
        if met.left:
            return met
        if kind == "loop":
            return met._replace(loop=position)
        if met.loop is None:
            return met
        if kind == "task":
            return met._replace(task=(position, value))
        return met if between_loop_and_task(value) else met._replace(left=True)


def _kind_for_root(value: object) -> str:
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
    for what, name in (("mock", "NonCallableMock"), ("call", "_Call")):
        cls = safe_access.loaded_class("unittest.mock", name)
        if cls is not None and safe_access.is_subclass(kind, cls):
            return what
    return ""


def _folded(before: Way | None, step: Step) -> Way | None:
    """Return the path with a step merged into its predecessor (``._modules['layer']`` to ``.layer``), or None."""
    key = _PLAIN_KEY.fullmatch(step.text)
    if before is None or key is None or before.step.text not in _FOLDED_AWAY:
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

"""A holder's path as inspectors read it: its steps, and how Python writes what lies before a step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.edge_to_edit import PART_MARKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.findings import ArrayInfo, Finding, Holder, HolderKind, PathStep
    from pytest_gpuleak.model.source_files import Origin

NAME_LIMIT: Final = 60
"""Longest name in a hint, in characters; a longer one is cut in its middle."""

NAMED: Final = ("module", "class", "cache", "fixture")
"""Kinds of roots that the user can name and edit."""

_INDEX: Final = re.compile(r"\[-?\d+\]")
ATTRIBUTE: Final = re.compile(r"\.[^\W\d]\w*")
_LISTS: Final = frozenset({"list", "collections.deque", "set"})
_DICTS: Final = frozenset({"dict", "collections.defaultdict", "collections.OrderedDict", "collections.Counter"})


@dataclass(frozen=True)
class Trail:
    """The path from a root to an array. `grows_at` is the position of the reference that each run was seen to add."""

    finding: Finding
    holder: Holder
    grows_at: int | None = None

    @property
    def kind(self) -> HolderKind:
        """Return the root's kind."""
        return self.holder.kind

    @property
    def root(self) -> str:
        """Return the root's text."""
        return self.holder.root

    @property
    def steps(self) -> tuple[PathStep, ...]:
        """Return the references, first one first."""
        return self.holder.path

    @property
    def array(self) -> ArrayInfo | None:
        """Return the first array, if the finding has one."""
        return self.finding.tensors[0] if self.finding.tensors else None

    @property
    def origin(self) -> Origin | None:
        """Return the line that created the first array, where it is known."""
        return None if self.array is None else self.array.created

    @property
    def growing(self) -> bool:
        """Tell whether each run of the test leaves more behind."""
        return self.finding.kind == "growing" or (self.finding.metric is not None and self.finding.bytes_per_run > 0)

    @property
    def has_graph(self) -> bool:
        """Tell whether the arrays have an autograd graph."""
        return self.finding.autograd is not None and self.finding.autograd.nodes > 0

    @property
    def named(self) -> bool:
        """Tell whether the user can name and edit the root."""
        return self.kind in NAMED

    def edge(self, index: int) -> str:
        """Return the reference at a position; empty beyond the end."""
        return self.steps[index].edge if 0 <= index < len(self.steps) else ""

    def type(self, index: int) -> str:
        """Return the type that the reference at a position leads from; empty beyond the end."""
        label = self.steps[index].type if 0 <= index < len(self.steps) else ""
        for mark in PART_MARKS:
            label = label.removesuffix(mark)
        return label

    def find(self, *edges: str) -> int | None:
        """Return the position of the first step that is one of these references."""
        return self.first(lambda step: step.edge in edges)

    def first(self, fits: Callable[[PathStep], bool]) -> int | None:
        """Return the position of the first step that fits."""
        return next((index for index, step in enumerate(self.steps) if fits(step)), None)

    def match(self, pattern: re.Pattern[str]) -> tuple[int, re.Match[str]] | None:
        """Return the position of the first step whose text matches as a whole, and the match."""
        matches = ((index, pattern.fullmatch(step.edge)) for index, step in enumerate(self.steps))
        return next(((index, found) for index, found in matches if found is not None), None)

    def gradient_with_graph(self, packages: tuple[str, ...] = ("",)) -> int | None:
        """Return the position of the first gradient, of a type in `packages`, that is followed into its graph."""
        for index, step in enumerate(self.steps):
            if (step.edge + self.edge(index + 1)).startswith(".grad.grad_fn") and step.type.startswith(packages):
                return index
        return None

    def owner(self, index: int) -> str:
        """Write the object that the step at `index` leads from, for a hint: quoted where it is code."""
        text = self.root + "".join([step.edge for step in self.steps[:index]])
        return cut(text) if self.kind == "fixture" else code(text)

    def container_of(self, index: int) -> str:
        """Write the container in which the object at `index` is an item."""
        return self.owner(index - 1 if self.is_item(index - 1) else index)

    def is_item(self, index: int) -> bool:
        """Tell whether a step leads from a built-in container that can grow to one of its items."""
        return self.type(index) in _LISTS | _DICTS and not self.edge(index).startswith(".")

    def is_plain(self, index: int) -> bool:
        """Tell whether a step is an attribute or an item in Python's syntax, dunder attributes excluded."""
        edge = self.edge(index)
        if edge.startswith("[") or self.is_item(index):
            return True
        return ATTRIBUTE.fullmatch(edge) is not None and not edge.startswith(".__")

    def is_plain_until(self, index: int) -> bool:
        """Tell whether only attributes and items lead to the object that the step at `index` leads from."""
        return all(self.is_plain(position) for position in range(index))

    def piles_up_before(self, index: int) -> bool:
        """Tell whether an item before the step at `index` may be what grows; one under a name is not."""
        return self.growing and any(
            step.type in _LISTS or (step.type in _DICTS and not step.edge.startswith("['"))
            for step in self.steps[:index]
        )

    def container(self) -> int | None:
        """Return the position of the step to an item of what grows: as seen, else of what is edited, else the first."""
        positions = (self.grows_at, self.holder.deciding, *range(len(self.steps)))
        return next((index for index in positions if index is not None and self.is_item(index)), None)


def is_index(edge: str) -> bool:
    """Tell whether a reference is an item by its number."""
    return _INDEX.fullmatch(edge) is not None


def cut(text: str, limit: int = NAME_LIMIT) -> str:
    """Cut text longer than `limit` characters in its middle."""
    if len(text) <= limit:
        return text
    head = (limit - 3) // 2
    return f"{text[:head]}...{text[len(text) - (limit - 3 - head) :]}"


def code(text: str) -> str:
    """Write a name or expression for a hint: cut and between backticks."""
    return f"`{cut(text)}`"

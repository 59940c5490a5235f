"""A holder's path as inspectors read it: which step is which, and how what lies before a step is written in Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.edge_to_edit import PART_MARKS

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding, Holder, HolderKind, PathStep

NAME_LIMIT: Final = 40
"""Characters of a name in a hint; a longer one is cut in its middle."""

_INDEX: Final = re.compile(r"\[-?\d+\]")
_ATTRIBUTE: Final = re.compile(r"\.[^\W\d]\w*")
_LISTS: Final = frozenset({"list", "collections.deque", "set"})
_DICTS: Final = frozenset({"dict", "collections.defaultdict", "collections.OrderedDict", "collections.Counter"})


@dataclass(frozen=True)
class Trail:
    """The way from a root to an array.

    Attributes:
        finding: what was found.
        holder: its holder.
    """

    finding: Finding
    holder: Holder

    @property
    def kind(self) -> HolderKind:
        """What the root is."""
        return self.holder.kind

    @property
    def root(self) -> str:
        """The root's text."""
        return self.holder.root

    @property
    def steps(self) -> tuple[PathStep, ...]:
        """The edges, first edge first."""
        return self.holder.path

    @property
    def growing(self) -> bool:
        """Whether each run of the test leaves more behind."""
        return self.finding.kind == "growing"

    @property
    def named(self) -> bool:
        """Whether the root is one that a user can name and edit."""
        return self.kind in ("module", "class", "cache", "fixture")

    def edge(self, index: int) -> str:
        """The edge at a position; empty beyond the end."""
        return self.steps[index].edge if 0 <= index < len(self.steps) else ""

    def type(self, index: int) -> str:
        """The type that the edge at a position leads from; empty beyond the end."""
        label = self.steps[index].type if 0 <= index < len(self.steps) else ""
        for mark in PART_MARKS:
            label = label.removesuffix(mark)
        return label

    def find(self, *edges: str) -> int | None:
        """Position of the first step that is one of these edges."""
        return next((index for index, step in enumerate(self.steps) if step.edge in edges), None)

    def match(self, pattern: re.Pattern[str]) -> tuple[int, re.Match[str]] | None:
        """Position of the first step whose edge matches as a whole, and the match."""
        for index, step in enumerate(self.steps):
            found = pattern.fullmatch(step.edge)
            if found is not None:
                return index, found
        return None

    def owner(self, index: int) -> str:
        """The object that the step at `index` leads from, as one writes it, for a hint: quoted where it is code."""
        text = self.root + "".join([step.edge for step in self.steps[:index]])
        return cut(text) if self.kind == "fixture" else code(text)

    def place_of(self, index: int) -> str:
        """Where the object that the step at `index` leads from is kept: the container that it is an item of."""
        return self.owner(index - 1 if self.is_item(index - 1) else index)

    def is_item(self, index: int) -> bool:
        """Whether a step leads from a built-in container that can grow to one of its items."""
        return self.type(index) in _LISTS | _DICTS and not self.edge(index).startswith(".")

    def is_plain(self, index: int) -> bool:
        """Whether a step is an attribute or an item, as one writes them; attributes of the language's own are not."""
        edge = self.edge(index)
        if edge.startswith("[") or self.is_item(index):
            return True
        return _ATTRIBUTE.fullmatch(edge) is not None and not edge.startswith(".__")

    def is_plain_until(self, index: int) -> bool:
        """Whether only attributes and items lead to the object that the step at `index` leads from."""
        return all(self.is_plain(position) for position in range(index))

    def piles_up_before(self, index: int) -> bool:
        """Whether something before the step at `index` may be what grows.

        An item of a list, a deque or a set, or of a dict under a key that is no name: one object was added a run, and
        what hangs on it is not the culprit.
        """
        return self.growing and any(
            step.type in _LISTS or (step.type in _DICTS and not step.edge.startswith("['"))
            for step in self.steps[:index]
        )

    def container(self) -> int | None:
        """Position of the first step that leads from a container that can grow to an item of it."""
        return next((index for index in range(len(self.steps)) if self.is_item(index)), None)


def is_index(edge: str) -> bool:
    """Whether an edge is an item by its number."""
    return _INDEX.fullmatch(edge) is not None


def cut(text: str, limit: int = NAME_LIMIT) -> str:
    """`text`, without its middle where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head = (limit - 3) // 2
    return f"{text[:head]}...{text[len(text) - (limit - 3 - head) :]}"


def code(text: str, limit: int = NAME_LIMIT) -> str:
    """A name or expression as it stands in a hint: cut and between backticks."""
    return f"`{cut(text, limit)}`"

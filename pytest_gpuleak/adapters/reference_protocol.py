"""Define what a search for holders needs from an array framework: who owns what in its native code, and how it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pytest_gpuleak.heap.budget import Budget
    from pytest_gpuleak.heap.hidden_references import Link

UNTOLD = -1
"""Returned by a `ReferenceFinder.owner_counter` for an array whose owners the framework cannot count."""


class NativeObjects(Protocol):
    """The live objects of a framework's native code, for the length of one search."""

    def lists(self) -> Sequence[list[Any]]:
        """Return the lists created here that refer to live objects: the search ignores their references."""

    def links(
        self,
        wanted: Mapping[int, object],
        unheld: Collection[int],
        known: Collection[tuple[int, int]],
        budget: Budget,
    ) -> list[Link]:
        """Find the references to `wanted` that lead through native code, as far as found within the budget.

        `unheld` has the ids of objects without a visible referrer, so that no path leads from them to a root; `known`
        the references known already, as ids of parent and child.
        """
        raise NotImplementedError

    def every_link(self, wanted: Mapping[int, object], budget: Budget) -> Iterable[Link]:
        """Like `links`, but all references, also to what one was found for."""
        return self.links(wanted, (), (), budget)


class ReferenceFinder(Protocol):
    """Finds references in a framework's native code, which the collector does not show."""

    def owner_counter(self) -> Callable[[object], int | None]:
        """Return a function that counts an array's native owners, its Python object left out.

        They hold one reference to that object together. None: no array of the framework. `UNTOLD`: unknown.
        """

    def take_census(self, budget: Budget) -> NativeObjects | None:
        """List the framework's live objects; None if it is not imported."""

    def held_alone(self, arrays: list[Any]) -> set[int]:
        """Return the ids of arrays that native code alone keeps alive. References from the list do not count."""

    def below(self, objects: Sequence[object]) -> Sequence[object]:
        """Return what native code keeps alive for these objects: gradients, what an array is a view of. It may be left out."""

    def may_close_rings(self, arrays: Sequence[object]) -> bool:
        """Return whether a reference cycle through native code may keep one of the arrays alive."""

    def root_of(self, value: object) -> str:
        """Return the use in words (``hooks of ...``) of an object that native code alone holds; empty if unknown."""


class PartsLayout(Protocol):
    """How a framework's objects store their parts, which a user does not take apart to free memory.

    Attributes:
        mark: suffix of the type's label on an edge from such an object to a part, as the user reads it.
        names: the attributes that hold the parts, each a dict by the parts' names.
    """

    mark: str
    names: Sequence[str]

    def keeps_parts(self, owner: object) -> bool:
        """Return whether an object stores parts this way, by the names of its classes: imports nothing."""

    def edge(self, owner: object, name: str) -> str | None:
        """Return how to write the part of that name (``.weight``, ``[0]``); None to write the dict entry."""

    def inside(self, owner: object, value: object) -> str | None:
        """Return how to write a reference of native code (``._backward_hooks``) that the collector shows; None for others."""

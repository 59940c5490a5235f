"""Guard a conftest.py framework's reference finder (see `adapters.guarded_framework`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.answers import WrongAnswer, of_class, of_type, text_of, whole
from pytest_gpuleak.heap.hidden_references import Link
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pytest_gpuleak.adapters.guarded import GuardMaker
    from pytest_gpuleak.adapters.protocol import NativeObjects, ReferenceFinder
    from pytest_gpuleak.heap.referrers import Deadline

TEXT_LIMIT: Final = 200
"""Characters of a framework's text that are kept."""

_METHODS: Final = ("owner_counter", "take_census", "held_alone", "may_close_rings", "root_of")


class GuardedFinder:
    """A reference finder behind guards. Raises WrongAnswer for a finder that lacks a method."""

    def __init__(self, finder: ReferenceFinder, guard: GuardMaker) -> None:
        missing = [name for name in _METHODS if not callable(getattr(finder, name, None))]
        if missing:
            raise WrongAnswer(f"{type(finder).__name__} has no {' and no '.join(missing)}")
        self._finder = finder
        self._guard = guard

    def owner_counter(self) -> Callable[[object], int | None]:
        """Return a counter of native owners; it returns None where the framework fails."""
        with self._guard("owner_counter"):
            count = self._finder.owner_counter()

            def owners(value: object) -> int | None:
                with self._guard("owner_counter"):
                    found: object = count(value)
                    return None if found is None else whole(found, "a number or None")
                return None

            return owners
        return lambda _: None

    def take_census(self, deadline: Deadline) -> NativeObjects | None:
        """Return the guarded native objects; None where the framework fails."""
        with self._guard("take_census"):
            found = self._finder.take_census(deadline)
            return None if found is None else _GuardedNatives(found, self._guard)
        return None

    def held_alone(self, arrays: list[Any]) -> set[int]:
        """Return the ids of arrays that native code alone holds; none where the framework fails."""
        with self._guard("held_alone"):
            return {whole(one, "a set of ids") for one in self._finder.held_alone(arrays)}
        return set()

    def may_close_rings(self, arrays: Sequence[object]) -> bool:
        """Return whether rings through native code are possible; False where the framework fails."""
        with self._guard("may_close_rings"):
            return of_type(self._finder.may_close_rings(arrays), bool)
        return False

    def root_of(self, value: object) -> str:
        """Return the cleaned text of the object's native use; empty where the framework fails."""
        with self._guard("root_of"):
            return clean_text(text_of(self._finder.root_of(value)), TEXT_LIMIT)
        return ""


class _GuardedNatives:
    def __init__(self, natives: NativeObjects, guard: GuardMaker) -> None:
        self._natives = natives
        self._guard = guard

    def lists(self) -> list[list[Any]]:
        with self._guard("lists"):
            return [of_type(one, list) for one in self._natives.lists()]
        return []

    def links(
        self,
        wanted: Mapping[int, object],
        unheld: Collection[int],
        known: Collection[tuple[int, int]],
        deadline: Deadline,
    ) -> list[Link]:
        with self._guard("links"):
            found = [of_class(link, Link) for link in self._natives.links(wanted, unheld, known, deadline)]
            return [
                Link(link.parent, link.child, None if link.edge is None else clean_text(text_of(link.edge), TEXT_LIMIT))
                for link in found
            ]
        return []

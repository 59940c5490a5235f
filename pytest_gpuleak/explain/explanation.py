"""The result of a search for one target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Holder

Culprit: TypeAlias = "tuple[str, str, int]"
"""Kind and root of an array's first holder, and the group of the array: see `explain.explain`."""


@dataclass(frozen=True)
class Explanation:
    """Who holds one target.

    Attributes:
        holder: the best root and the shortest path from it; kind ``native`` or ``unknown`` where there is none.
        pattern: the path without indices and addresses, equal for targets that are held in the same way.
        others: further holders, which would keep it if the first one let go.
    """

    holder: Holder
    pattern: str
    others: tuple[Holder, ...] = ()

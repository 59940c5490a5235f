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
    """Who holds one target: the best root with the shortest path from it, else of kind ``native`` or ``unknown``.

    `pattern` is the path without indices and addresses; `others` would keep it if the first holder let go.
    """

    holder: Holder
    pattern: str
    others: tuple[Holder, ...] = ()

"""What a search says of one target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Holder


@dataclass(frozen=True)
class Explanation:
    """Who holds one target.

    Attributes:
        holder: the best root and the shortest path from it; kind ``native`` or ``unknown`` where there is none.
        pattern: the path without indices and addresses: what is held alike has the same.
        others: what else would keep it if the holder let go of it.
    """

    holder: Holder
    pattern: str
    others: tuple[Holder, ...] = ()

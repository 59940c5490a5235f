"""What is known of a suspect, run by run, as plain data: what `engine.judge` judges and compares."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuleak.model.findings import Autograd, Holder, Origin
    from pytest_gpuleak.model.readings import ArrayReading

Root = tuple[str, str, str]
"""What findings are grouped by: device, holder kind and holder root."""


def root_of(device: str, holder: Holder | None) -> Root:
    """Return the group that an array on a device belongs to."""
    return (device, holder.kind, holder.root) if holder is not None else (device, "", "")


class Survivor(NamedTuple):
    """One storage that a run left behind, shown by one of the arrays that share it.

    Attributes:
        run: the run that it was born in: 0 for the first, 1 for the first re-run, ...
        reading: metadata of the array.
        owned: whether no older array shares the storage; else the run left an array behind, but no memory.
        holder: who keeps it, None where it was gone before the holders were looked for.
        others: who would still keep it if the holder let go.
        pattern: the holder's text without indices.
        created: the line that made the storage, where known.
    """

    run: int
    reading: ArrayReading
    owned: bool = True
    holder: Holder | None = None
    others: tuple[Holder, ...] = ()
    pattern: str = ""
    created: Origin | None = None

    @property
    def size(self) -> int:
        """Bytes that the run left behind with it."""
        return self.reading.storage_bytes if self.owned else 0

    @property
    def root(self) -> Root:
        """What findings are grouped by."""
        return root_of(self.reading.device, self.holder)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is known of a suspect, run by run.

    Attributes:
        survivors: every storage that was left behind by some run.
        alive: for each run that ended, the indices into `survivors` of those alive after it. One entry means that
            it was not run again.
        cycles: arrays of the first run that only a garbage collection freed.
        graphs: what the autograd graphs behind the survivors retain, by device, holder kind and holder root.
    """

    survivors: tuple[Survivor, ...]
    alive: tuple[frozenset[int], ...]
    cycles: tuple[ArrayReading, ...] = ()
    graphs: Mapping[Root, Autograd] = dataclasses.field(default_factory=dict)

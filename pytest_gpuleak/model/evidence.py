"""What the runs of a suspect left behind, as plain data: the input of `engine.judge`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuleak.model.findings import Autograd, Holder
    from pytest_gpuleak.model.readings import ArrayReading
    from pytest_gpuleak.model.source_files import Origin

Root = tuple[str, str, str]
"""Key by which findings are grouped: device, holder kind, holder root."""

Keeper = Literal["frames", "item"]
"""What in a test's runner keeps something: running frames of plugins, or pytest's item with the test's instance."""


def root_of(device: str, holder: Holder | None) -> Root:
    """Return the group of an array on a device."""
    return (device, holder.kind, holder.root) if holder is not None else (device, "", "")


class Survivor(NamedTuple):
    """One storage that a run (0: the first) left behind, shown by one of the arrays that share it.

    Attributes:
        owned: whether no older array shares the storage. Otherwise the run left an array behind, but no memory.
        holder: who keeps it, None where it was freed before the search; `others` would keep it without the holder.
        pattern: the holder's text without indices.
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
        """Return the bytes that the run left behind with it."""
        return self.reading.storage_bytes if self.owned else 0

    @property
    def root(self) -> Root:
        """Return the group that its finding belongs to."""
        return root_of(self.reading.device, self.holder)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What the runs of a suspect left behind; `graphs` is what the autograd graphs behind the survivors retain.

    Attributes:
        alive: by run that ended, the indices into `survivors` of those alive after it. One entry: no re-run.
        cycles: arrays of the first run that only a garbage collection freed.
        rings: the cycles that some of these hang on, by the identity of the array.
        kept: by index, what in the test's runner alone keeps a survivor of an earlier run: the re-run has let it go. What
            frames alone keep goes when they return.
        kept_before: those of them that nothing else held when the first run had ended: no re-run has let them go.
        collected: by re-run, the survivors of earlier runs that a collection of the whole heap has freed although they had
            not been proven to be no garbage when the re-run began: garbage, or replaced through a cycle.
        older_gone: by re-run, arrays older than the test that died in it: a bounded buffer drops one for each that it takes.
        older_doubtful: the re-runs in which such arrays may have gone by themselves: in a collection, or in another thread.
        exact: the re-runs that began from a settled heap: what died in them was replaced or let go, and no garbage.
        let_go: by device, the bytes of older arrays that the first run let go: what is retained is net of them.
        up: roots of the wider fixtures that are still set up. What they alone hold is judged at their teardown.
        rebuilds: whether the first re-run has set up wider fixtures that were torn down after the first run, and that stay set
            up from then on. It is compared with nothing, as little as the first test to use them.
        traced: the last re-run, if it was made for the lines that create arrays: it decides nothing.
        freed_by_setup: whether the setup of a re-run, which ended there, has let go of all: the call would have replaced it.
    """

    survivors: tuple[Survivor, ...]
    alive: tuple[frozenset[int], ...]
    cycles: tuple[ArrayReading, ...] = ()
    graphs: Mapping[Root, Autograd] = dataclasses.field(default_factory=dict)
    rings: Mapping[int, Holder] = dataclasses.field(default_factory=dict)
    kept: Mapping[int, Keeper] = dataclasses.field(default_factory=dict)
    kept_before: frozenset[int] = frozenset()
    collected: Mapping[int, frozenset[int]] = dataclasses.field(default_factory=dict)
    older_gone: Mapping[int, tuple[ArrayReading, ...]] = dataclasses.field(default_factory=dict)
    older_doubtful: frozenset[int] = frozenset()
    exact: frozenset[int] = frozenset()
    let_go: Mapping[str, int] = dataclasses.field(default_factory=dict)
    up: frozenset[str] = frozenset()
    rebuilds: bool = False
    freed_by_setup: bool = False
    traced: int | None = None

    @property
    def last(self) -> frozenset[int]:
        """Return the indices of what was alive after the last run that decides."""
        return self.alive[-1] if self.traced is None else self.alive[self.traced - 1]

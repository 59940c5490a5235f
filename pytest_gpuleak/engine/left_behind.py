"""Record who left what in this session, by weak handles and plain data, for when memory runs out. Sizes are bytes."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.engine.limits import LEAST_NETTED, LEAST_SWEPT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuleak.adapters.bulk import Held
    from pytest_gpuleak.engine.detect.fixture_ownership import OwnedSetup
    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.readings import ArrayReading

Group = tuple[str, str, int]
"""An owner, a device, and the bytes of a storage: what re-runs have left of the same size."""

MAX_HOLDERS: Final = 3
"""Holders named with an owner: the holders with the most bytes."""


@dataclasses.dataclass(frozen=True)
class OwnedBytes:
    """Memory that an owner (a nodeid, or by `owner_of`) left on a device: `count` storages, and largest `holders`."""

    owner: str
    device: str
    bytes: int
    count: int
    holders: tuple[str, ...] = ()


class _Entry:
    __slots__ = ("held", "holder", "owner")

    def __init__(self, owner: str, held: Held, holder: str) -> None:
        self.owner = owner
        self.held = held
        self.holder = holder


class LeftBehind:
    """Keep who left what in one process. A storage belongs to its first owner for as long as it lives."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], _Entry] = {}
        self.extra: Counter[Group] = Counter()
        """How many of a group are there because a test was run again. Which of them is a matter of chance: a slot has what
        the last run has put there."""
        self._sweep_at = LEAST_SWEPT
        self._large: list[tuple[Group | None, Held]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def note(
        self, owner: str, held: Held, holder_text: str = "", *, of_rerun: bool = False, extra: bool = False
    ) -> None:
        """Note that an owner (a test's nodeid, or a name by `owner_of`) has left a storage behind.

        One `of_rerun` may stand for another of its size: one that is `extra` is there because the test was run again.
        """
        key = (held.reading.device, held.handle.storage)
        known = self._entries.get(key)
        if known is not None and known.held.handle.alive():
            known.holder = known.holder or holder_text
            return
        group = (owner, held.reading.device, held.reading.storage_bytes) if of_rerun else None
        self._entries[key] = _Entry(owner, held, holder_text)
        if held.reading.storage_bytes >= LEAST_NETTED:
            self._large.append((group, held))
        if extra and group is not None:
            self.extra[group] += 1
        if len(self._entries) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if entry.held.handle.alive()}
        self._sweep_at = max(LEAST_SWEPT, 2 * len(self._entries))

    def large(self) -> list[tuple[Group | None, Held]]:
        """Return the storages from `LEAST_NETTED` up that are still there, with their group if a re-run has left them."""
        self._large = [known for known in self._large if known[1].handle.alive()]
        return self._large

    def held(self) -> list[Held]:
        """Return what was left, also what is gone since."""
        return [entry.held for entry in self._entries.values()]

    def storages(self) -> set[tuple[str, int]]:
        """Return the storages that are still there, by device and key."""
        self._sweep()
        return set(self._entries)

    def alive(self) -> list[OwnedBytes]:
        """Return what is still there, by owner and device, most bytes first."""
        self._sweep()
        return summed(
            (entry.owner, key[0], entry.held.reading.storage_bytes, entry.holder)
            for key, entry in self._entries.items()
        )


def active_fixtures(setups: Iterable[OwnedSetup], readings: Mapping[int, ArrayReading]) -> list[OwnedBytes]:
    """Return what active fixtures hold; sizes come from `readings` by storage, since weak handles have none."""
    found: list[tuple[str, str, int, str]] = []
    met: set[int] = set()
    for setup in setups:
        owner = owner_of(setup.place)
        for handle, _ in setup.held:
            reading = readings.get(handle.storage)
            if reading is not None and handle.storage not in met and handle.alive():
                met.add(handle.storage)
                found.append((owner, reading.device, reading.storage_bytes, ""))
    return summed(found)


def owner_of(place: FixturePlace) -> str:
    """Name a fixture as an owner: ``fixture 'model' (module scope, tests/test_model.py)``."""
    where = f", {place.baseid}" if place.baseid else ""
    return f"fixture '{place.name}' ({place.scope} scope{where})"


def summed(parts: Iterable[tuple[str, str, int, str]]) -> list[OwnedBytes]:
    """Sum up owners, devices, bytes and holders of storages, by owner and device, most bytes first."""
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    held: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for owner, device, size, holder in parts:
        sizes[owner, device].append(size)
        if holder:
            by_holder = held[owner, device]
            by_holder[holder] = by_holder.get(holder, 0) + size
    rows = [
        OwnedBytes(owner, device, sum(parts_of), len(parts_of), _largest(held[owner, device]))
        for (owner, device), parts_of in sizes.items()
    ]
    return sorted(rows, key=lambda row: (-row.bytes, row.owner, row.device))


def _largest(held: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(sorted(held, key=lambda holder: (-held[holder], holder))[:MAX_HOLDERS])

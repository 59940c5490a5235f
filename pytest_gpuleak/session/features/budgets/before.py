"""Tell which wider fixtures have the memory that was on a device before a test. Loaded for an excess alone."""

from __future__ import annotations

from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.arrays import array_types, select_arrays
from pytest_gpuleak.adapters.bulk import read_arrays
from pytest_gpuleak.heap.referrers import get_referents, reaches_everything, untouchable_modules
from pytest_gpuleak.heap.safe_access import in_package
from pytest_gpuleak.model.findings import Contribution
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.session.fixtures import is_wider
from pytest_gpuleak.session.pytest_internals import fixtures_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_gpuleak.adapters.protocol import ArrayFramework

MOST_OBJECTS: Final = 50_000
"""Objects behind one fixture that are looked at."""

_LEADS_AWAY: Final = (FunctionType, MethodType, BuiltinFunctionType, FrameType)
"""Types of objects that lead to a module's globals, or to what runs."""


def held_by_fixtures(item: pytest.Item, device: str, frameworks: Sequence[ArrayFramework]) -> tuple[Contribution, ...]:
    """Return what the wider fixtures that a test uses have on a device, most first; each storage is the first one's."""
    counted: set[int] = set()
    found: list[Contribution] = []
    for fixture in {id(one): one for one in fixtures_of(item)}.values():
        result = getattr(fixture, "cached_result", None)
        if result is None or result[-1] is not None or not is_wider(fixture):
            continue
        readings = read_arrays(_arrays_behind(result[0], frameworks), frameworks).values()
        sizes = {
            one.storage: one.storage_bytes for one in readings if one.device == device and one.storage not in counted
        }
        counted.update(sizes)
        if sizes:
            name = clean_text(str(fixture.argname), 80)
            found.append(Contribution(f"fixture {name}", sum(sizes.values()), len(sizes)))
    return tuple(sorted(found, key=lambda part: -part.bytes))


def _arrays_behind(value: object, frameworks: Sequence[ArrayFramework]) -> list[object]:
    """Return the arrays that an object leads to, without code, modules, and objects of pytest's."""
    arrays: list[object] = []
    bases = array_types(frameworks)
    never = untouchable_modules()
    met = {id(value)}
    level: list[object] = [value]
    while level and len(met) < MOST_OBJECTS:
        arrays += select_arrays(level, bases)
        level = [one for one in level if id(one) not in never and not _leads_away(one)]
        following = {id(one): one for one in get_referents(*level) if id(one) not in met}
        met.update(following)
        level = list(following.values())
    return arrays


def _leads_away(value: object) -> bool:
    kind = type(value)
    return kind in _LEADS_AWAY or reaches_everything(value) or in_package(kind, "_pytest")

"""The large objects that are new, by what holds them; nothing is kept, and no stranger's code runs."""

from __future__ import annotations

import array
import gc
import mmap
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.host.pympler_probe import PymplerProbe, summarize
from pytest_gpuleak.explain import large_objects
from pytest_gpuleak.explain.large_objects import MAX_PARTS, LargeObjects
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.walk import HeapWalk, Sizes

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Contribution

MIB = 2**20
CACHE: list[Any] = []
TABLE: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _clean() -> Any:
    """Leave nothing in the globals; what was alive before the test need not be walked over."""
    global CACHE, TABLE
    gc.collect()
    gc.freeze()
    CACHE, TABLE = [], {}  # born after: visible
    yield
    CACHE.clear()
    TABLE.clear()
    gc.unfreeze()


def recorded(make: Any, *, maps: bool = False, whole: bool = False) -> tuple[Contribution, ...]:
    """What was found of what `make` left behind; with `whole` the frozen objects count too."""
    if whole:
        gc.unfreeze()
    large = LargeObjects(maps=maps)
    large.begin()
    make()
    return large.end()


def texts(parts: tuple[Contribution, ...]) -> list[tuple[str, int, str | None]]:
    return [(part.text, part.count, part.holder.text if part.holder else None) for part in parts]


def test_a_new_bytearray_is_named_with_its_holder() -> None:
    parts = recorded(lambda: CACHE.append(bytearray(20 * MIB)), whole=True)
    assert texts(parts) == [("bytearray", 1, f"{__name__}.CACHE[0]")]
    assert 20 * MIB <= parts[0].bytes < 20 * MIB + 4096


def test_what_was_there_before_does_not_count_and_what_grew_counts_by_its_growth() -> None:
    CACHE.extend([bytearray(MIB), bytearray(MIB)])

    def grow() -> None:
        CACHE[1].extend(bytes(3 * MIB))

    parts = recorded(grow, whole=True)
    assert texts(parts) == [("bytearray", 1, f"{__name__}.CACHE[1]")]
    assert 3 * MIB <= parts[0].bytes < 4 * MIB


def test_objects_in_untracked_containers_are_led_to() -> None:
    def fill() -> None:
        TABLE["blob"] = bytearray(MIB)
        TABLE["pair"] = (1, bytes(2 * MIB))

    parts = recorded(fill, whole=True)
    assert texts(parts) == [
        ("bytes", 1, f"{__name__}.TABLE['pair'][1]"),
        ("bytearray", 1, f"{__name__}.TABLE['blob']"),
    ]


def test_every_kind_of_large_object_is_met() -> None:
    def fill() -> None:
        CACHE.extend([bytes(MIB), "x" * MIB, array.array("d", bytes(MIB)), list(range(100_000)), set(range(100_000))])
        CACHE.append(dict.fromkeys(range(100_000)))

    found = {part.text for part in recorded(fill, whole=True)}
    assert found == {"bytes", "str", "array.array", "list", "set", "dict"}


def test_equal_objects_under_one_root_are_one_part() -> None:
    parts = recorded(lambda: CACHE.extend(bytearray(MIB) for _ in range(5)), whole=True)
    assert [(part.text, part.count) for part in parts] == [("bytearray", 5)]
    assert parts[0].bytes >= 5 * MIB


def test_maps_are_told_apart_and_are_no_heap() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * MIB)

        def fill() -> None:
            CACHE.extend([mmap.mmap(-1, MIB), mmap.mmap(file.fileno(), 2 * MIB)])

        assert [part.text for part in recorded(fill, maps=True)] == ["mmap.mmap of a file", "mmap.mmap, anonymous"]
        CACHE.clear()
        assert recorded(fill, maps=False) == ()


@pytest.mark.torch
def test_the_array_behind_a_view_is_met() -> None:
    numpy = pytest.importorskip("numpy")
    parts = recorded(lambda: CACHE.append(numpy.arange(MIB, dtype="uint8").reshape(2, -1)), whole=True)
    assert texts(parts) == [("numpy.ndarray", 1, f"{__name__}.CACHE[0].base")]


def test_a_walk_that_found_no_end_makes_nothing_look_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_objects, "WALK_STEPS", 0)
    large = LargeObjects()
    large.begin()
    CACHE.append(bytearray(MIB))
    assert large.end() == ()


def test_no_more_parts_than_a_reader_reads() -> None:
    kinds = [type(f"Blob{number}", (bytearray,), {}) for number in range(MAX_PARTS + 3)]
    assert len(recorded(lambda: CACHE.extend(kind(MIB) for kind in kinds))) == MAX_PARTS


class Blob(bytearray):
    """Large, and weakly referable."""


def test_nothing_is_kept_alive() -> None:
    gone: list[weakref.ref[Blob]] = []

    def fill() -> None:
        for _ in range(3):
            blob = Blob(MIB)
            CACHE.append((1, blob))
            gone.append(weakref.ref(blob))

    parts = recorded(fill)
    assert parts[0].count == 3
    CACHE.clear()
    assert [reference() for reference in gone] == [None] * 3


class HostileMeta(type):
    def __repr__(cls) -> str:
        raise RuntimeError("asked for repr")

    def __hash__(cls) -> int:
        raise RuntimeError("asked for hash")

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("asked for eq")


class Hostile(bytearray, metaclass=HostileMeta):
    """Raises whatever is asked."""

    def __sizeof__(self) -> int:
        raise RuntimeError("asked for size")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("asked for eq")

    def __hash__(self) -> int:  # type: ignore[override]  # a bytearray has none
        raise RuntimeError("asked for hash")

    @property  # type: ignore[misc]  # a proxy's trick
    def __class__(self) -> Any:
        raise RuntimeError("asked for class")

    def __len__(self) -> int:
        raise RuntimeError("asked for length")

    def __iter__(self) -> Any:
        raise RuntimeError("asked for items")


def test_hostile_objects_are_sized_without_their_code() -> None:
    parts = recorded(lambda: CACHE.append(Hostile(MIB)))
    assert [part.text for part in parts] == [f"{__name__}.Hostile"]
    assert parts[0].bytes >= MIB


def test_sizes_are_those_of_the_interpreter() -> None:
    from sys import getsizeof

    class Slim:
        __slots__ = ("x",)

    values: list[object] = [b"abc", "text", [1, 2], (1, 2), {1: 2}, {1}, Slim(), object(), 1.5, None]
    assert Sizes().of(values) == [getsizeof(value) for value in values]


def test_a_walk_meets_each_untracked_object_and_ends_in_cycles() -> None:
    marker = bytearray(b"marker of this test")
    CACHE.append((1, (2, marker)))
    CACHE.append(CACHE)
    walk = HeapWalk(Budget(10**9))
    met = sum(value is marker for batch in walk.batches() for value in batch.objects)
    assert met
    assert walk.complete


def test_pympler_tells_growth_by_type_and_survives_hostile_objects() -> None:
    probe = PymplerProbe()
    probe.start()
    probe.begin_record()
    CACHE.append(Hostile(MIB))
    CACHE.append([bytearray(1024) for _ in range(2048)])
    growth = probe.end_record()
    probe.stop()
    by_type = {part.text: (part.count, part.bytes) for part in growth.contributions}
    assert by_type["bytearray"][0] == 2048
    assert by_type["bytearray"][1] >= 2 * MIB
    assert by_type[f"{__name__}.Hostile"][0] == 1
    assert 3 * MIB <= growth.bytes < 4 * MIB


def test_pympler_sees_no_growth_where_there_is_none() -> None:
    probe = PymplerProbe()
    probe.start()
    probe.begin_record()
    growth = probe.end_record()
    probe.stop()
    assert abs(growth.bytes) < 256 * 1024
    assert growth.contributions == ()


def test_pympler_tells_nothing_where_the_budget_is_small() -> None:
    assert summarize(0) is None

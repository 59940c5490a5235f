"""The epoch's arrays through full collections of the user's."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from pytest_gpuleak.engine.detect.epochs import EpochDetector
from pytest_gpuleak.engine.detect.young_arrays import KeepYoung, make_cycle_young, make_young
from pytest_gpuleak.heap.collector import collect_young, current_view, epochs_supported, get_objects
from tests.support.standin import Buffer, StandInArrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.skipif(
    make_young() is None or not epochs_supported(), reason="this interpreter's collector cannot be told what is young"
)


class Walks(EpochDetector):
    """Counts the looks at the whole heap."""

    walks = 0

    def find(self, identities: set[int]) -> list[object]:
        self.walks += 1
        return super().find(identities)


@pytest.fixture
def detector() -> Iterator[Walks]:
    found = Walks([StandInArrays()])
    found.start()
    yield found
    found.stop()


def test_what_survives_is_found_among_the_young_without_a_look_at_the_heap(detector: Walks) -> None:
    detector.open()
    kept = [Buffer(100), Buffer(200)]
    gone = [Buffer(300)]
    gc.collect()
    kept.append(Buffer(400))
    gone.clear()
    gc.collect()
    born = detector.look()
    assert {id(array) for array in born} == {id(array) for array in kept}
    assert detector.walks == 0
    assert not detector.sees_only_young
    detector.open()
    assert detector.sees_only_young
    assert detector.look() == []


def test_an_array_in_the_place_of_one_that_has_gone_is_born(detector: Walks) -> None:
    """What a re-run leaves may have the address of garbage of the first run, which the re-run has freed."""
    detector.open()
    older = Buffer(100)
    place, address = id(older), older.memory.address
    assert detector.continue_epoch()
    del older
    made = [Buffer(100)]
    while id(made[-1]) != place and len(made) < 1000:
        made.append(Buffer(100))
    if id(made[-1]) != place:
        pytest.skip("the interpreter gave the place to something else")
    del made[:-1]
    made[0].memory.address = address
    assert detector.look() == made


class Lazy:
    """Pretends to be what it stands for, as lazy objects and mocks do."""

    asked: ClassVar[list[str]] = []

    @property  # type: ignore[misc] # as such objects do
    def __class__(self) -> type:
        self.asked.append("class")
        raise RuntimeError("not loaded")


def test_objects_are_moved_without_their_own_code() -> None:
    move = make_young()
    assert move is not None
    buffer = Buffer(100)
    dead = weakref.proxy(buffer)
    del buffer
    lazy = Lazy()
    gc.collect()
    for value in (dead, lazy):
        move(value)
        assert gc.is_tracked(value)
        assert any(found is value for found in gc.get_objects(0))
    assert Lazy.asked == []


def test_the_tests_functions_of_the_c_api_are_left_as_they_are() -> None:
    """ctypes keeps one function object for each name, whose argument types would be changed under a test's feet."""
    code = """
import ctypes, threading
from pytest_gpuleak.adapters.buffer_protocol import memory_of
from pytest_gpuleak.adapters.dlpack import capsule_address
from pytest_gpuleak.engine.detect.young_arrays import make_young
from pytest_gpuleak.heap.async_exceptions import raise_in

NAMES = (
    "PyObject_GC_UnTrack PyObject_GC_Track PyObject_GetBuffer PyBuffer_Release PyCapsule_GetName PyCapsule_GetPointer "
    "PyThreadState_SetAsyncExc"
).split()
for name in NAMES:
    function = getattr(ctypes.pythonapi, name)
    function.argtypes, function.restype = [ctypes.c_longdouble] * 3, ctypes.c_byte
import datetime
assert memory_of(bytearray(10)).size == 10
assert capsule_address(datetime.datetime_CAPI) is None
make_young()([])
try:
    assert raise_in(threading.get_ident(), KeyError)
    for _ in range(100_000):
        pass
except KeyError:
    print("raised")
for name in NAMES:
    function = getattr(ctypes.pythonapi, name)
    assert (function.argtypes, function.restype) == ([ctypes.c_longdouble] * 3, ctypes.c_byte), name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "raised"), done.stderr


def test_what_the_collection_frees_is_looked_for_once_and_is_gone(detector: Walks) -> None:
    circle: dict[str, Any] = {"tracked": []}  # older than the epoch: no collection of the young alone frees the array
    detector.open()
    circle["array"] = Buffer(100)
    circle["self"] = circle
    kept = Buffer(200)
    del circle
    gc.collect()
    assert detector.look() == [kept]
    assert detector.walks == 1


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no signal to spare")
def test_a_lost_signal_is_delivered_once(detector: Walks) -> None:
    """What delivers it lies among the callbacks until the next collection, which is one of two where user code asks for one."""
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    try:
        detector.open()
        view = current_view()
        assert view is not None
        length = len(gc.callbacks)
        view.signals.lost.append(signal.SIGUSR1)
        view.signals.go_on("stop")  # as a collection ends in which it was lost: the collector calls what is added
        assert len(gc.callbacks) == length + 1
        gc.collect()
        gc.collect()
        assert len(gc.callbacks) == length
        assert received == []
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_nothing_is_kept_alive_or_left_referred_to(detector: Walks) -> None:
    import weakref

    detector.open()
    array = Buffer(100)
    gc.collect()
    assert weakref.getweakrefcount(array) == 0
    detector.close()
    reference = weakref.ref(array)
    del array
    assert reference() is None


def test_a_type_without_weak_references_is_known_by_its_id() -> None:
    array = [1]
    youth = KeepYoung([array])
    assert youth.restore() == {id(array)}


@pytest.mark.torch
def test_a_tensor_that_only_native_code_holds_after_the_collection_is_found() -> None:
    torch = pytest.importorskip("torch")
    from pytest_gpuleak.adapters.registry import own_frameworks

    detector = EpochDetector(own_frameworks().arrays)
    detector.start()
    try:
        detector.open()
        leaf = torch.ones(7, requires_grad=True)
        loss = (leaf * 2).sum()
        circle: list[Any] = [leaf]
        circle.append(circle)
        del leaf, circle
        gc.collect()
        shapes = sorted(tuple(array.shape) for array in detector.look())  # type: ignore[attr-defined]
        assert shapes == [(), (7,)]
        assert loss is not None
    finally:
        detector.stop()


def test_a_continued_epoch_counts_arrays_as_old_and_collects_them(detector: Walks) -> None:
    detector.open()
    circle: dict[str, Any] = {"array": Buffer(100)}
    circle["circle"] = circle
    left = weakref.ref(circle["array"])
    kept = [Buffer(200)]
    assert detector.continue_epoch()
    assert detector.look() == []
    kept.append(Buffer(300))
    assert [id(array) for array in detector.look()] == [id(kept[1])]
    circle = {}
    collect_young()
    assert left() is None
    detector.open()
    assert detector.look() == []


def test_after_a_full_collection_or_a_setup_a_continued_epoch_collects_all_the_same(detector: Walks) -> None:
    detector.open()
    circle: dict[str, Any] = {"array": Buffer(100)}
    circle["circle"] = circle
    left = weakref.ref(circle["array"])
    gc.collect()
    assert detector.continue_epoch()
    assert detector.look() == []
    assert detector.take_and_age() == []  # a wider fixture is set up again
    assert detector.continue_epoch()
    circle = {}
    collect_young()
    assert left() is None


class Owner:
    """Refers to itself through plain containers."""

    def __init__(self, *values: object) -> None:
        self.table = {"compare": self.compare, "values": values}

    def compare(self) -> None:
        """Be a bound method."""


def test_an_older_cycle_is_made_young_with_its_owner(detector: Walks) -> None:
    owner = Owner(Buffer(100))
    owner.table["itself"] = [({"owner": owner},)]
    detector.open()
    new = owner.table["new"] = Buffer(200)
    left = weakref.ref(owner)
    make_cycle_young(owner)
    assert [id(array) for array in detector.look()] == [id(new)]  # an older array stays old
    del owner
    collect_young()
    assert left() is None


def test_an_older_owner_is_made_young_where_a_new_function_refers_to_it(detector: Walks) -> None:
    owner = Owner()
    owner.table.clear()
    detector.open()
    owner.table["new"] = types.SimpleNamespace(calls=[[one] for one in range(5000)], call=lambda: owner)
    make_cycle_young(owner)
    young = {id(one) for one in get_objects()}
    assert {id(owner), id(owner.table)} <= young
    assert id(globals()) not in young


@pytest.mark.parametrize("values", [range(5000), [[[number]] for number in range(5000)]], ids=["wide", "many"])
def test_what_is_not_on_the_cycle_stays_old(detector: Walks, values: Sequence[object]) -> None:
    plain, apart = [1], list(values)
    owner = Owner(plain, apart)
    detector.open()
    make_cycle_young(owner)
    young = {id(one) for one in get_objects()}
    assert id(owner) in young
    assert not young & {id(plain), id(apart), *map(id, filter(gc.is_tracked, apart))}


def test_an_owner_without_a_cycle_stays_old(detector: Walks) -> None:
    owner = Owner()
    owner.table.clear()
    detector.open()
    make_cycle_young(owner)
    assert id(owner) not in {id(one) for one in get_objects()}

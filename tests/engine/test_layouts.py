"""What the plugin relies on of the interpreter's own structures, checked on each Python that it runs on."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import types
from sys import getrefcount
from typing import Any

import pytest

from pytest_gpuleak.adapters.arrays import _HEAP_TYPE, _outlives_tests, _read_flags
from pytest_gpuleak.adapters.host.heap_reader import mallinfo
from pytest_gpuleak.engine.detect import young_arrays
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.collector import epochs_supported
from pytest_gpuleak.heap.collector_rules import is_free_threaded
from pytest_gpuleak.heap.interpreter import LOOKUP_REFERENCES
from pytest_gpuleak.heap.referrers import untouchable_modules
from pytest_gpuleak.heap.safe_access import has_weak_references
from pytest_gpuleak.heap.type_sieve import HAVE_GC
from pytest_gpuleak.heap.walk import Sizes

pytestmark = pytest.mark.interpreter


class Plain:
    pass


class Slotted:
    __slots__ = ("value",)


class SlottedWeakly:
    __slots__ = ("__weakref__", "value")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(Plain(), True), (SlottedWeakly(), True), (Slotted(), False), ([], False), ({}, False), ((), False), (1, False),
     (set(), True), (types.ModuleType("made"), True), (lambda: None, True), (bytearray(), False)],
)  # fmt: skip
def test_which_objects_can_be_referred_to_weakly(value: object, expected: bool) -> None:
    assert has_weak_references(value) is expected


def test_the_flags_of_types() -> None:
    assert all(_read_flags(kind) & HAVE_GC for kind in (Plain, list, dict, tuple, types.FunctionType))
    assert not _read_flags(int) & HAVE_GC
    assert not _read_flags(bytearray) & HAVE_GC
    assert _read_flags(Plain) & _HEAP_TYPE
    assert not any(_read_flags(kind) & _HEAP_TYPE for kind in (int, list, type, object))
    assert _outlives_tests(bytearray)
    assert not _outlives_tests(Plain)


def test_sizes_are_those_of_the_interpreter() -> None:
    class Rude(list):  # type: ignore[type-arg]
        def __sizeof__(self) -> int:
            raise AssertionError("asked")

    class Polite(list):  # type: ignore[type-arg]
        pass

    values: list[object] = [[1, 2], {}, "text", b"bytes", bytearray(100), (1, 2), Plain(), Polite([1, 2])]
    assert Sizes().of(values) == list(map(sys.getsizeof, values))
    assert Sizes().of([Rude([1, 2])]) == [sys.getsizeof(Polite([1, 2]))]


def test_how_many_references_counting_adds() -> None:
    """The constant that is subtracted from `sys.getrefcount`, measured with a dict's variable and with a list's."""
    objects: dict[int, object] = {0: Plain()}
    value = objects[0]
    assert getrefcount(value) == LOOKUP_REFERENCES
    for found in [Plain()]:
        assert getrefcount(found) == LOOKUP_REFERENCES


@pytest.mark.skipif(not epochs_supported(), reason="no generations on this interpreter")
def test_an_object_is_made_young() -> None:
    move = young_arrays.make_young()
    assert move is not None
    value: list[object] = [[]]
    gc.collect()
    assert not any(one is value for one in gc.get_objects(generation=0))
    move(value)
    assert any(one is value for one in gc.get_objects(generation=0))
    assert sum(one is value for one in gc.get_objects()) == 1
    gc.collect()
    assert gc.is_tracked(value)


@pytest.mark.parametrize("broken", ["untrack", "track"])
def test_functions_that_do_something_else_are_not_used(broken: str) -> None:
    def untrack(value: object) -> None:
        if broken != "untrack":
            ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(value))

    def track(value: object) -> None:
        # What is tracked must not be tracked a second time: the process would end.
        assert broken == "track"

    assert not young_arrays._moves(untrack, track)


def test_another_c_library_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda name: None, raising=False)
    assert mallinfo() is None


@pytest.mark.skipif(mallinfo() is None, reason="not the GNU C library, or before 2.33")
@pytest.mark.skipif(is_free_threaded(), reason="free-threaded Python has an allocator of its own")
def test_the_c_librarys_structure_is_read_right() -> None:
    info = mallinfo()
    assert info is not None
    before = info.read()
    block = ctypes.create_string_buffer(8 << 20)
    assert (8 << 20) <= info.read() - before < (9 << 20)
    del block
    class_ = info._ask.restype  # type: ignore[attr-defined]
    assert ctypes.sizeof(class_) >= 32 * ctypes.sizeof(ctypes.c_size_t)


def test_members_and_slots_of_builtin_objects() -> None:
    value = Slotted()
    assert safe_access.members(value) == []
    value.value = 5  # type: ignore[attr-defined]
    assert safe_access.members(value) == [("value", 5)]
    assert safe_access.slot(value, Slotted, "value") == 5
    assert safe_access.instance_dict(value) is None
    plain = Plain()
    plain.name = 1  # type: ignore[attr-defined]
    assert safe_access.instance_dict(plain) == {"name": 1}


SECOND_ASYNCIO = """
    import gc, sys, types

    from pytest_gpuleak.heap.referrers import untouchable_modules

    def is_asyncio(value):
        return type(value) is types.ModuleType and vars(value).get("__name__") == "_asyncio"

    before = dict(sys.modules)
    import asyncio

    async def work():
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, 1)
        return await future

    assert asyncio.run(work()) == 1
    sys.modules.clear()
    sys.modules.update(before)
    made = {id(value) for value in gc.get_objects() if is_asyncio(value)}
    assert made and "_asyncio" not in sys.modules
    assert made <= untouchable_modules(), (made, untouchable_modules())
    import asyncio
    made = {id(value) for value in gc.get_objects() if is_asyncio(value)}
    # Before, its types were static and the same for both, and so was the free list, which nobody was shown.
    assert sys.version_info < (3, 12) or made <= untouchable_modules(), (made, untouchable_modules())
    print("done")
"""


def test_every_asyncio_module_is_left_alone() -> None:
    """On CPython 3.12 a walk that looks into one hangs; a second one is there after an import that was taken back."""
    command = [sys.executable, "-c", textwrap.dedent(SECOND_ASYNCIO)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stderr
    assert type(untouchable_modules()) is frozenset


def test_the_public_functions_that_are_bound_exist() -> None:
    names: dict[Any, tuple[str, ...]] = {
        gc: ("freeze", "unfreeze", "get_freeze_count", "get_objects", "get_referents", "is_tracked"),
        sys: ("_current_frames", "_getframe", "getswitchinterval", "getallocatedblocks"),
    }
    for module, wanted in names.items():
        assert all(hasattr(module, name) for name in wanted)

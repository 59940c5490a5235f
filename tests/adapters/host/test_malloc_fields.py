"""What glibc's malloc knows of itself, read from its own variables."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuleak.adapters.host import malloc_fields
from pytest_gpuleak.adapters.host.glibc import mallinfo
from pytest_gpuleak.adapters.host.malloc_fields import find_fields
from pytest_gpuleak.heap.collector_rules import is_free_threaded

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(mallinfo() is None, reason="no mallinfo2 in this C library"),
    pytest.mark.skipif(sys.platform != "linux", reason="no /proc/self/maps here"),
]

REAL = """
import ctypes, threading

from pytest_gpuleak.adapters.host.glibc import mallinfo
from pytest_gpuleak.adapters.host.malloc_fields import find_fields

heap, library, kept = mallinfo(), ctypes.PyDLL(None), []
fields = next(filter(None, (find_fields(library, heap.ask) for _ in range(5))))
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]

def as_told():
    told = heap.ask()
    return fields.obtained() == told.arena + told.hblkhd

def grown(leave):
    before = fields.elsewhere()
    leave()
    return (fields.elsewhere() - before) // 1_000_000

def in_thread():
    blocks = [library.malloc(50_000) for _ in range(100)]
    kept.append(blocks)

def run_thread():
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()

print(as_told())
print(grown(lambda: kept.append(library.malloc(70_000_000))), grown(lambda: library.free(kept.pop())), as_told())
print(grown(run_thread), as_told())
top = fields.top()
kept += [library.malloc(50_000) for _ in range(100)]
print(fields.top() - top >= 4_000_000, fields.top() % 16, as_told())
"""


@pytest.mark.skipif(is_free_threaded(), reason="this interpreter has a heap of its own")
def test_they_are_what_the_library_itself_tells() -> None:
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["True", "70 -71 True", "5 True", "True 0 True"]


def library() -> Any:
    import ctypes

    return ctypes.PyDLL(None)


def test_nothing_is_read_where_the_library_tells_otherwise() -> None:
    heap = mallinfo()
    assert heap is not None
    told = heap.ask()
    assert find_fields(library(), lambda: SimpleNamespace(arena=told.arena, hblks=-5, hblkhd=told.hblkhd)) is None
    assert find_fields(library(), lambda: SimpleNamespace(arena=1, hblks=told.hblks, hblkhd=told.hblkhd)) is None


MAPS = {
    "empty": b"",
    "not of this library": b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 /usr/lib/libcrypto.so.3\n",
    "no heap": b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n",
}


@pytest.mark.parametrize("name", MAPS)
def test_nothing_is_read_where_the_maps_do_not_tell_where(name: str, tmp_path: Any, monkeypatch: Any) -> None:
    heap = mallinfo()
    assert heap is not None
    (tmp_path / "maps").write_bytes(MAPS[name])
    monkeypatch.setattr(malloc_fields, "MAPS", tmp_path / "maps")
    assert find_fields(library(), heap.ask) is None


def test_without_maps_it_is_an_error_of_the_system(tmp_path: Any, monkeypatch: Any) -> None:
    heap = mallinfo()
    assert heap is not None
    monkeypatch.setattr(malloc_fields, "MAPS", tmp_path / "none")
    with pytest.raises(OSError, match="none"):
        find_fields(library(), heap.ask)

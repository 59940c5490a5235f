"""Which mode sees what: the table of docs/host-memory.md, made in a process of its own."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.slow

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "host-memory.md"

SCRIPT = """
import ctypes, gc, importlib.util, json, mmap, sys, tempfile

MIB = 2**20
HAVE_NUMPY = importlib.util.find_spec("numpy") is not None
HAVE_TORCH = importlib.util.find_spec("torch") is not None
if HAVE_NUMPY:
    import numpy
if HAVE_TORCH:
    import torch
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
file = tempfile.NamedTemporaryFile()
file.truncate(20 * MIB)


class Point:
    def __init__(self, x):
        self.x = x


def anonymous_map():
    area = mmap.mmap(-1, 20 * MIB)
    area.write(b"x" * (20 * MIB))
    return area


def file_map():
    mapped = numpy.memmap(file.name, mode="r", dtype="uint8")
    mapped.sum()
    return mapped


def native():
    pointer = libc.malloc(20 * MIB)
    ctypes.memset(pointer, 1, 20 * MIB)
    return pointer


ROWS = {
    "20 bytearrays of 1 MiB in a list": lambda: [bytearray(b"x" * MIB) for _ in range(20)],
    "20,480 bytearrays of 1 KiB in a list": lambda: [bytearray(b"x" * 1024) for _ in range(20480)],
    "250,000 small Python objects": lambda: [Point(str(i)) for i in range(250_000)],
    "`ctypes` `malloc` of 20 MiB": native,
    "`mmap` of 20 MiB, anonymous": anonymous_map,
}
if HAVE_NUMPY:
    ROWS["NumPy array of 20 MiB"] = lambda: numpy.ones(20 * MIB, dtype="uint8")
    ROWS["`numpy.memmap` of a file of 20 MiB"] = file_map
if HAVE_TORCH:
    ROWS["CPU tensor of 20 MiB"] = lambda: torch.ones(5 * MIB)

from pytest_gpuleak.adapters.host.modes import host_probes
from pytest_gpuleak.explain.large_objects import recorder_of


found = {}
gc.collect()
gc.freeze()  # the walks over the heap need not see what has been imported
for name in ("rss", "heap", "tracemalloc", "pympler"):
    (probe,) = host_probes([name])
    probe.start()
    for row, make in ROWS.items():
        # The resident set shrinks by what the system happens to take back meanwhile: it is given more than one chance.
        for _ in range(5 if name == "rss" else 1):
            gc.collect()
            libc.malloc_trim(0)  # what lies below something that stays is given back by this alone
            before = probe.read()
            recorder = recorder_of(probe)
            recorder.begin_record()
            kept = [make()]
            after = probe.read()
            growth = recorder.end_record()
            # Seen: it is made a suspect by more than the default limit, and the record says so too.
            seen = after - before > 10 * MIB and growth.bytes > 10 * MIB
            parts = [
                (part.text, part.bytes, part.count, part.holder and part.holder.text) for part in growth.contributions
            ]
            found.setdefault(row, {})[name] = [seen, after - before, growth.bytes, parts]
            if row.startswith("`ctypes`"):
                libc.free(kept[0])
            kept = None
            if seen:
                break
    probe.stop()
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, list[object]]]:
    """What each mode saw of each row."""
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        # The C library gives back at once what is freed: else the resident set would not grow when it is used again.
        env={
            **os.environ,
            "PYTHONPATH": str(DOCUMENT.parents[1]),
            "PYTHONTRACEMALLOC": "0",
            "MALLOC_MMAP_THRESHOLD_": "65536",
            "MALLOC_TRIM_THRESHOLD_": "65536",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, dict[str, list[object]]] = json.loads(finished.stdout)
    return found


def documented() -> dict[str, dict[str, bool]]:
    """The table of the document."""
    lines = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    start = next(index for index, line in enumerate(lines) if "`heap`" in line)
    modes = [cell.strip().strip("`") for cell in lines[start].strip("|").split("|")][1:]
    table = {}
    for line in lines[start + 2 : start + 10]:
        what, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        table[what] = {mode: cell.startswith("yes") for mode, cell in zip(modes, cells, strict=True)}
    return table


@pytest.mark.skipif(sys.platform != "linux", reason="the table is of Linux with the GNU C library")
def test_the_documents_table_is_what_was_measured(measured: dict[str, dict[str, list[object]]]) -> None:
    table = documented()
    expected = set(table)
    if find_spec("numpy") is None:
        expected -= {"NumPy array of 20 MiB", "`numpy.memmap` of a file of 20 MiB"}
    if find_spec("torch") is None:
        expected -= {"CPU tensor of 20 MiB"}
    assert set(measured) == expected
    seen = {row: {mode: cell[0] for mode, cell in modes.items()} for row, modes in measured.items()}
    assert seen == {row: table[row] for row in measured}

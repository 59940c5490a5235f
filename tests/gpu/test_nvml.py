"""What the driver of a real NVIDIA device says. Skipped, with the reason, where there is none."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.nvml.readings import Nvml, NvmlReading, outside
from pytest_gpuleak.adapters.processes.watch import ProcessWatch
from pytest_gpuleak.engine.judge.processes import judge_processes
from pytest_gpuleak.model.readings import ProbeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.torch

MIB = 1 << 20

CHILD = """
import torch
kept = torch.ones(64 << 20, dtype=torch.uint8, device="cuda:0")
torch.cuda.synchronize()
print(flush=True)
input()
"""


@pytest.fixture
def torch() -> Any:
    """torch, with CUDA started."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    torch.ones(1, device="cuda:0")
    return torch


@pytest.fixture
def read(torch: Any) -> Iterator[Callable[[], NvmlReading]]:
    """Reads the first device."""
    probe = Nvml()
    try:
        probe.start()
    except ProbeUnavailable as reason:
        pytest.skip(str(reason))
    first = probe.read()["cuda:0"]
    if first.own is None:
        probe.stop()
        pytest.skip(first.why_absent)
    yield lambda: probe.read()["cuda:0"]
    probe.stop()
    assert probe.fault == ""


def test_this_process_holds_at_least_what_torch_has_reserved(torch: Any, read: Callable[[], NvmlReading]) -> None:
    reading = read()
    assert str(torch.cuda.get_device_properties(0).uuid) in reading.uuid
    assert reading.total is not None
    assert reading.used is not None
    beyond = outside(reading, torch.cuda.memory_reserved(0))
    assert beyond is not None
    assert 0 < beyond < reading.used <= reading.total


def test_an_allocation_outside_torch_is_seen(torch: Any, read: Callable[[], NvmlReading]) -> None:
    before = outside(read(), torch.cuda.memory_reserved(0))
    driver, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 * MIB)) == 0
    try:
        after = outside(read(), torch.cuda.memory_reserved(0))
    finally:
        assert driver.cuMemFree_v2(pointer) == 0
    assert before is not None
    assert after is not None
    assert 64 * MIB <= after - before < 80 * MIB


@pytest.mark.slow
def test_a_child_left_running_is_found_with_its_bytes(read: Callable[[], NvmlReading]) -> None:
    watch = ProcessWatch()
    watch.begin()
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        (finding,) = judge_processes(watch.left(), {"cuda:0": read()})
    finally:
        child.communicate(b"\n")
    assert (finding.kind, finding.failed, finding.device) == ("process", True, "cuda:0")
    assert finding.bytes > 64 * MIB
    assert finding.metric == f"pid {child.pid}"
    watch.begin()
    assert watch.left() == []

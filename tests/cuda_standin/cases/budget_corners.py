"""Tests over their budgets whose peaks are hard to explain: each fails as it would without an explanation."""

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

MIB = 1 << 20
RUNS = []

pytestmark = pytest.mark.max_gpu_mb(4)


@pytest.fixture(scope="session", autouse=True)
def context():
    torch.ones(1, device="cuda")


def block(size, device="cuda:0"):
    return torch.empty(size * MIB, dtype=torch.uint8, device=device)


def test_only_in_the_first_run():
    RUNS.append("first")
    block(16 // RUNS.count("first"))


def test_resets_the_peak_itself():
    block(8)
    torch.cuda.reset_peak_memory_stats()


def test_fails_in_its_re_run():
    RUNS.append("fails")
    block(8)
    assert RUNS.count("fails") == 1


def test_compiled():
    @torch.compile(backend="eager")
    def double(x):
        return x * 2

    double(block(4))


class Counted(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_under_a_mode_of_its_own():
    with Counted() as mode:
        block(8)
    assert mode.calls == 1


def test_in_a_thread():
    thread = threading.Thread(target=block, args=(8,))
    thread.start()
    thread.join()


def test_records_the_history_itself():
    torch.cuda.memory._record_memory_history(enabled="all", context=None)
    block(8)
    assert any(entry["size"] == 8 * MIB for entry in torch.cuda.memory._snapshot()["device_traces"][0])
    torch.cuda.memory._record_memory_history(enabled=None)


def test_in_a_pool_of_its_own():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = block(8)
    assert len(kept) == 8 * MIB


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_on_the_second_device():
    block(3)
    block(8, "cuda:1")

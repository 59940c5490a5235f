"""A fixture that leaves what its only setup has made: the allocator knows the lines. `SETUP_LINES` names the way."""

import os

import pytest
import torch

WAY = os.environ.get("SETUP_LINES", "used first")
KEPT = []


def record():
    torch.cuda.memory._record_memory_history(max_entries=100)


if WAY != "used first":
    torch.cuda.init()
if WAY == "recorded before":
    record()


def make_layer():
    return torch.nn.Linear(512, 1024, device="cuda")


@pytest.fixture(scope="session", autouse=True)
def recording():
    if WAY == "recorded meanwhile":
        record()
    yield
    assert torch._C._cuda_isHistoryEnabled() == WAY.startswith("recorded")


@pytest.fixture(scope="module")
def table():
    return torch.ones(1 << 19, device="cuda")


@pytest.fixture(scope="module")
def model(table):
    layer = make_layer()
    KEPT.append((layer, table))
    return layer


def test_it(model):
    assert model.weight.is_cuda

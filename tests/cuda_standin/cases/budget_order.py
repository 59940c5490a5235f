"""Budgets of tests that use workspaces of cuBLAS: which test allocates them follows from the order of the tests."""

import pytest
import torch

MIB = 1 << 20


@pytest.fixture(scope="session", autouse=True)
def context():
    torch.ones(1, device="cuda")


def block(size):
    return torch.empty(int(size * MIB), dtype=torch.uint8, device="cuda")


def product():
    a = torch.ones(512, 512, device="cuda")  # 1 MiB
    return a @ a


def test_without_a_budget():
    product()


@pytest.mark.max_gpu_mb(2)
def test_within():
    product()


@pytest.mark.max_gpu_mb(1)
def test_over():
    product()


@pytest.mark.max_gpu_mb(4.5)
def test_within_in_two_threads():
    a = torch.ones(512, 512, device="cuda", requires_grad=True)
    (a @ a).sum().backward()


@pytest.mark.max_gpu_mb(5)
def test_over_before_the_workspace():
    block(6)
    product()


@pytest.mark.max_gpu_mb(7)
def test_within_before_the_workspace():
    block(6)
    product()


STATES = []


def use_library():
    """Have cuDNN make its state for dropout, which it does once. The stand-in has no cuDNN: a block stands for it."""
    if "stand-in" not in torch.cuda.get_device_name():
        torch.nn.LSTM(8, 8, 2, dropout=0.5, device="cuda")(torch.ones(1, 1, 8, device="cuda"))
    elif not STATES:
        size = (48 << 10) * torch.cuda.get_device_properties(0).multi_processor_count
        STATES.append(torch.cuda.caching_allocator_alloc(size))
    block(1)


@pytest.mark.max_gpu_mb(3)
def test_within_beside_a_state():
    use_library()


@pytest.mark.max_gpu_mb(3)
def test_within_beside_a_state_again():
    use_library()


@pytest.fixture(scope="module")
def weights():
    return product()


@pytest.mark.max_gpu_mb(2)
def test_within_beside_a_fixture(weights):
    product()

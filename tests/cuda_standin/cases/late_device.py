"""The device is first used in the middle of the session, by a test that leaks nothing."""

import torch

KEPT = []


def test_on_the_cpu():
    torch.ones(1000).sum()


def test_leak_on_the_cpu():
    KEPT.append(torch.ones(1 << 20))


def test_first_use():
    assert not torch.cuda.is_initialized()
    torch.nn.Linear(64, 64, device="cuda")(torch.ones(8, 64, device="cuda")).sum().backward()


def test_leak_on_the_device():
    KEPT.append(torch.ones(1 << 20, device="cuda"))


def test_clean():
    torch.ones(3, device="cuda")

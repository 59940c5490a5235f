"""The first test that uses the device leaks on it: the context is no leak, the tensor is one."""

import torch

KEPT = []


def test_on_the_cpu():
    torch.ones(1000).sum()


def test_first_use_leaks():
    KEPT.append(torch.ones(1 << 20, device="cuda"))


def test_clean():
    torch.ones(3, device="cuda")

"""A test that multiplies after its peak: the counters do not tell whether its workspace was in the peak."""

import torch

MIB = 1 << 20


def test_multiplies_late():
    torch.empty(32 * MIB, dtype=torch.uint8, device="cuda").zero_()
    a = torch.ones(512, 512, device="cuda")
    assert (a @ a).is_cuda

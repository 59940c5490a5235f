"""A block of torch's allocator that no tensor has: only the allocator's history knows who asked for it."""

import sys

import torch

BLOCKS = []


def test_warm():
    torch.ones(3, device="cuda")


def test_raw_block():
    BLOCKS.append(torch.cuda.caching_allocator_alloc(4 << 20))


def test_raw_block_given_back():
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(4 << 20))


def test_the_allocators_history_has_not_imported_torchs_compiler():
    torch.ones(3, device="cuda")
    assert "torch._inductor" not in sys.modules
    assert "_inductor" not in vars(torch)

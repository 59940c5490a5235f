"""Leaks while torch's requested bytes lag behind a stream, so that only whole blocks are counted."""

import torch

KEPT = []
MIB = 1 << 20


def block(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def block_used_on_a_stream():
    """Return a block whose release takes effect with the allocation after it."""
    with torch.cuda.stream(torch.cuda.Stream()):
        found = block(513)
        found.record_stream(torch.cuda.default_stream())
    return found


def test_fails_with_an_unread_gradient():
    weight = torch.ones(64, device="cuda", requires_grad=True)
    (weight * weight).sum().backward()
    raise AssertionError


def test_leaks_less_than_its_block():
    lagging = block_used_on_a_stream()
    KEPT.append(block(513))
    assert lagging.shape == (513,)


def test_leaks_in_a_block_that_is_not_split():
    torch.cuda.empty_cache()
    before, between, after = block(8 * MIB), block(4 * MIB), block(8 * MIB)
    lagging = block_used_on_a_stream()
    del between
    KEPT.append(block(3 * MIB))
    assert before.shape == after.shape
    assert lagging.shape == (513,)

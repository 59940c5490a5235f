"""Leaks large, small and retained, and clean tests around them: the same verdicts with every allocator."""

import torch

KEPT = []
CACHE = {}


def test_clean_first():
    torch.ones(1 << 20, device="cuda")


def test_large_leak():
    KEPT.append(torch.ones(60 << 20, dtype=torch.uint8, device="cuda"))


def test_clean_after_large():
    x = torch.ones(1 << 22, device="cuda", requires_grad=True)
    (x * x).sum().backward()


def test_small_leak():
    KEPT.append(torch.ones(16, device="cuda"))


def test_retained():
    CACHE.setdefault("table", torch.ones(4 << 20, dtype=torch.uint8, device="cuda"))


def test_copies():
    host = torch.ones(1 << 20).pin_memory()
    device = host.to("cuda", non_blocking=True)
    assert device.cpu().shape == host.shape


def test_streams():
    stream = torch.cuda.Stream()
    x = torch.ones(1 << 20, device="cuda")
    with torch.cuda.stream(stream):
        y = x + 1
        x.record_stream(stream)
    torch.cuda.current_stream().wait_stream(stream)
    del x, y


def test_clean_last():
    torch.ones(1 << 20, device="cuda")

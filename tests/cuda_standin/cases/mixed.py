"""Leaks and what only looks like a leak, around a test that runs out of memory."""

import ctypes

import torch

KEPT = []


def test_leaks():
    KEPT.append(torch.ones(60 << 20, dtype=torch.uint8, device="cuda"))


def test_oom():
    torch.empty(torch.cuda.mem_get_info()[1] + 1, dtype=torch.uint8, device="cuda")


def test_pinned_leak():
    KEPT.append(torch.ones(1 << 20, dtype=torch.uint8).pin_memory())


def test_linear():
    torch.nn.Linear(64, 64, device="cuda")(torch.ones(8, 64, device="cuda")).sum().backward()


def test_raw_driver_leak():
    torch.ones(1, device="cuda")
    pointer = ctypes.c_uint64()
    assert ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0


def test_graph():
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(1 << 18, device="cuda")
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    assert y.shape == x.shape


def test_side_stream():
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.ones(1 << 20, device="cuda")
        x.record_stream(torch.cuda.current_stream())


def test_event_and_record_stream():
    stream = torch.cuda.Stream()
    x = torch.ones(1 << 20, device="cuda")
    x.record_stream(stream)
    del x


def test_hidden_in_graph():
    weight = torch.ones(1 << 18, device="cuda", requires_grad=True)
    KEPT.append((weight * weight).exp().sum())

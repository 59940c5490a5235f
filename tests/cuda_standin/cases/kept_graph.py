"""A graph that is kept without its tensors: its random state stays allocated, 16 bytes that no tensor in Python has."""

import torch

GRAPHS = []


def test_local_graph():
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(1 << 20, device="cuda")
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    assert y.shape == x.shape


def test_kept_graph():
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(1 << 23, device="cuda")
    with torch.cuda.graph(graph):
        y = x * 2
    assert y.shape == x.shape
    GRAPHS.append(graph)


def test_clean():
    torch.ones(3, device="cuda")

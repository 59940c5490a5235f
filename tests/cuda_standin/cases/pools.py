"""Pools of the user's own, and the private pools of CUDA graphs."""

import torch

POOLS = []
GRAPHS = []
KEPT = []
MIB = 1 << 20


def capture(x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    return graph, y


def test_warm():
    torch.ones(3, device="cuda")


def test_local_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        torch.zeros(MIB, device="cuda")


def test_tensor_of_a_kept_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        KEPT.append(torch.zeros(MIB, device="cuda"))
    POOLS.append(pool)


def test_local_graph():
    capture(torch.zeros(1 << 18, device="cuda"))


def test_kept_graph_and_its_tensors():
    x = torch.zeros(1 << 18, device="cuda")
    GRAPHS.append((x, *capture(x)))


def test_tensor_of_a_local_graph():
    KEPT.append(capture(torch.zeros(1 << 18, device="cuda"))[1])


def test_clean():
    torch.ones(3, device="cuda")

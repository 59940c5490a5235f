"""Memory of the allocator that no Python tensor explains: the history names the line that asked for it."""

import torch

KEPT = []


class Scripted(torch.nn.Module):
    items: list[torch.Tensor]

    def __init__(self):
        super().__init__()
        self.items = []

    def forward(self, count: int):
        self.items.append(torch.ones(count, device="cuda"))
        return len(self.items)


SCRIPTED = torch.jit.script(Scripted())
STREAMS = []


def test_warm():
    torch.ones(3, device="cuda")


def test_list_of_a_scripted_module():
    SCRIPTED(1 << 20)


def test_workspace_of_an_own_stream():
    stream = torch.cuda.Stream()
    STREAMS.append(stream)
    with torch.cuda.stream(stream):
        torch.ones(16, 16, device="cuda") @ torch.ones(16, 16, device="cuda")


def test_graph_kept_with_its_pool():
    static = torch.ones(1 << 18, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = static * 2
        doubled + 1
    KEPT.append(graph)


def test_pinned_given_back():
    torch.ones(1 << 20).pin_memory()


def test_pinned_kept():
    KEPT.append(torch.ones(1 << 18).pin_memory())


def test_storage_kept():
    KEPT.append(torch.ones(1 << 18, device="cuda").untyped_storage())

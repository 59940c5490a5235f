"""What the random programs of allocator_programs.py are made of: steps that leave nothing behind, and planted leaks.

A template is filled in with `{name}` (a variable of the part's own), `{size}` (bytes), `{device}` and `{other}` (indices).
"""

from __future__ import annotations

import dataclasses

MIB = 1 << 20
SIZES = (1, 3, 127, 128, 129, 511, 512, 513, 5_000, 1 << 18, MIB - 1, MIB, 3 * MIB, 11 * MIB)
"""Bytes of a tensor: around blocks of 512 bytes, and the limits of the allocator's pools (1 MiB, 10 MiB)."""
BLOCK = 512
RANDOM_STATE = 16
"""Bytes that a kept graph's random state takes on the device: torch allocates it, and no tensor in Python has it."""

HEAD = """
import sys

import torch

KEPT = []
CACHE = {}
STREAMS = {}

class Node:
    pass

def stream(device, number):
    if (device, number) not in STREAMS:
        STREAMS[device, number] = torch.cuda.Stream(device=device)
    return STREAMS[device, number]

def block(size, device):
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
"""

STEPS = {
    "tensor": "{name} = block({size}, {device})",
    "view": "{name} = block({size}, {device})[:1]",
    "views of a view": "{name} = block({size}, {device})\n{name} = {name}.view(-1)[:1].detach().unsqueeze(0)",
    "freed": "{name} = block({size}, {device})\ndel {name}",
    "freed between": """
        {name} = [block({size}, {device}) for _ in range(5)]
        del {name}[1:4]
        {name}.append(block({size} // 2 + 1, {device}))""",
    "copied": "{name} = block({size}, {device}).clone()",
    "copied to the other": "{name} = block({size}, {device}).to('cuda:{other}')",
    "resized": """
        {name} = block({size}, {device})
        {name}.untyped_storage().resize_(0)
        {name}.untyped_storage().resize_({size} * 2)""",
    "recorded": "{name} = block({size}, {device})\n{name}.record_stream(stream({device}, 0))\ndel {name}",
    "on a stream": """
        with torch.cuda.device({device}), torch.cuda.stream(stream({device}, 1)):
            {name} = block({size}, {device})
            {name}.record_stream(torch.cuda.default_stream({device}))""",
    "on a stream of its own": """
        with torch.cuda.device({device}), torch.cuda.stream(torch.cuda.Stream({device})):
            {name} = torch.ones(16, 16, device='cuda:{device}')
            {name} = {name} @ {name}""",
    "pinned": """
        {name} = torch.empty({size}, dtype=torch.uint8, pin_memory=True)
        {name}.to('cuda:{device}', non_blocking=True)""",
    "emptied": "torch.cuda.empty_cache()",
    "reset": "torch.cuda.reset_peak_memory_stats({device})",
    "peak": """
        torch.cuda.reset_peak_memory_stats({device})
        block({size}, {device})
        assert torch.cuda.max_memory_allocated({device}) >= max({size}, torch.cuda.memory_allocated({device}))""",
    "accumulated": "torch.cuda.reset_accumulated_memory_stats({device})",
    "synchronised": "torch.cuda.synchronize({device})",
    "event": "{name} = torch.cuda.Event()\n{name}.record()\n{name}.query()",
    "graph": """
        with torch.cuda.device({device}):
            {name} = torch.cuda.CUDAGraph(), torch.zeros(1024, device='cuda:{device}')
            with torch.cuda.graph({name}[0], stream=stream({device}, 2)):
                {name} += ({name}[1] * 2,)
        del {name}""",
    "graph replayed": """
        with torch.cuda.device({device}):
            {name}, {name}_from = torch.cuda.CUDAGraph(), torch.zeros(1024, device='cuda:{device}')
            with torch.cuda.graph({name}, stream=stream({device}, 2)):
                {name}_to = {name}_from * 2
            {name}.replay()
            {name}.reset()""",
    "pool": """
        with torch.cuda.device({device}):
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                {name} = block({size}, {device})
        del {name}, pool""",
    "raw": """
        {name} = torch.cuda.caching_allocator_alloc({size}, {device})
        torch.cuda.caching_allocator_delete({name})""",
    "workspace": "torch.nn.Linear(16, 16, device='cuda:{device}')(torch.ones(4, 16, device='cuda:{device}'))",
    "plan": "torch.fft.fft(torch.ones(64, device='cuda:{device}'))",
    "backward": "{name} = torch.ones(64, device='cuda:{device}', requires_grad=True)\n({name} * {name}).sum().backward()",
    "cycle": """
        {name} = Node()
        {name}.itself, {name}.data = {name}, block({size}, {device})
        del {name}""",
}


@dataclasses.dataclass(frozen=True)
class Leak:
    """A leak to plant.

    Attributes:
        source: the template; `size` is what stays behind in each run.
        bytes: bytes that stay behind where the size does not say so; else 0.
        more: bytes that the finding may count beyond: what a block is rounded up by, or what a graph keeps besides.
        on_host: whether the memory is the host's.
        grows: whether each run adds; else only the first leaves something behind, which fails from 1 MiB up.
    """

    source: str
    bytes: int = 0
    more: int = 0
    on_host: bool = False
    grows: bool = True

    def verdict(self, size: int) -> str:
        """Return the verdict that a leak of this size must get."""
        return "leaked" if self.grows or size >= MIB else "noted"


LEAKS = {
    "tensor": Leak("KEPT.append(block({size}, {device}))"),
    "view": Leak("KEPT.append(block({size}, {device})[1:2])"),
    "storage": Leak("KEPT.append(block({size}, {device}).untyped_storage())"),
    "stream": Leak("""
        with torch.cuda.device({device}), torch.cuda.stream(stream({device}, 0)):
            KEPT.append(block({size}, {device}))
            KEPT[-1].record_stream(torch.cuda.default_stream())"""),
    "beside freed": Leak("""
        {name} = [block({size}, {device}) for _ in range(4)]
        KEPT.append({name}[2])"""),
    "copy to the other": Leak("KEPT.append(block({size}, {other}).to('cuda:{device}'))"),
    "raw": Leak("KEPT.append(torch.cuda.caching_allocator_alloc({size}, {device}))", more=MIB),
    "pinned": Leak("KEPT.append(torch.empty({size}, dtype=torch.uint8, pin_memory=True))", on_host=True),
    "graph": Leak(
        """
        with torch.cuda.device({device}):
            graph, start = torch.cuda.CUDAGraph(), torch.zeros(1 << 18, device='cuda:{device}')
            with torch.cuda.graph(graph, stream=stream({device}, 2)):
                KEPT.append((graph, start, start * 2))""",
        bytes=2 * MIB,
        more=RANDOM_STATE + BLOCK,
    ),
    "pool": Leak("""
        with torch.cuda.device({device}):
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                KEPT.append((pool, block({size}, {device})))"""),
    "loss": Leak(
        """
        weight = torch.ones({size}, dtype=torch.float16, device='cuda:{device}', requires_grad=True)
        KEPT.append((weight * weight).sum())""",
        more=2 * 11 * MIB,
    ),
    "node": Leak(
        """
        weight = torch.ones({size}, dtype=torch.float16, device='cuda:{device}', requires_grad=True)
        KEPT.append((weight * weight).exp().sum().grad_fn)""",
        more=4 * 11 * MIB,
    ),
    "unread gradient": Leak(
        """
        weight = torch.ones({size}, dtype=torch.float16, device='cuda:{device}', requires_grad=True)
        (weight * 2).sum().backward()
        KEPT.append(weight)""",
        more=4 * 11 * MIB,
    ),
    "kept once": Leak("CACHE.setdefault(sys._getframe().f_code.co_name, block({size}, {device}))", grows=False),
}

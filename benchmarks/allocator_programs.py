"""Runs random programs against torch's CUDA allocator, and compares each verdict with what was planted.

    python benchmarks/allocator_programs.py --programs 3000           # a fresh seed, printed first
    python benchmarks/allocator_programs.py --seed 7 --programs 300   # the programs of a seed again

Each program is a test of one to eight steps on one or two devices: tensors of sizes around the allocator's blocks, views,
streams with `record_stream`, pinned memory, `empty_cache`, resets of the peaks, graphs, memory pools, raw allocations,
workspaces, cycles. One in eight plants a leak. It runs in processes of 300 tests, on a device or on the stand-in runtime
of tests/cuda_standin, whose environment it is started in. Prints one line for each verdict that is wrong, then a summary;
the exit status is 1 where any is.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import random
import sys
import textwrap
from typing import Any

from device_suite import run_suite

SIZES = (1, 3, 127, 128, 129, 511, 512, 513, 5_000, 1 << 18, (1 << 20) - 1, 1 << 20, 3 << 20, 11 << 20)
"""Bytes of a tensor: around blocks of 512 bytes, and the limits of the allocator's pools (1 MiB, 10 MiB)."""
SMALLEST_LEAK = 512
"""Bytes: smaller leaks of memory that no tensor explains may hide in a block's rounding."""
LEAKING_SHARE = 1 / 8
IN_A_PROCESS = 300

HEAD = """
import torch

KEPT = []
STREAMS = {}

class Node:
    pass

def stream(device, number):
    if (device, number) not in STREAMS:
        STREAMS[device, number] = torch.cuda.Stream(device=device)
    return STREAMS[device, number]
"""

STEPS = {
    "tensor": "{name} = torch.empty({size}, dtype=torch.uint8, device='cuda:{device}')",
    "view": "{name} = torch.empty({size}, dtype=torch.uint8, device='cuda:{device}')[:1]",
    "freed": "{name} = torch.empty({size}, dtype=torch.uint8, device='cuda:{device}')\ndel {name}",
    "copied": "{name} = torch.empty({size}, dtype=torch.uint8, device='cuda:{device}').clone()",
    "recorded": """
        {name} = torch.empty({size}, dtype=torch.uint8, device='cuda:{device}')
        {name}.record_stream(stream({device}, 0))
        del {name}""",
    "on a stream": """
        with torch.cuda.device({device}), torch.cuda.stream(stream({device}, 1)):
            {name} = torch.empty({size}, dtype=torch.uint8, device='cuda:{device}')
            {name}.record_stream(torch.cuda.default_stream({device}))""",
    "pinned": """
        {name} = torch.empty({size}, dtype=torch.uint8, pin_memory=True)
        {name}.to('cuda:{device}', non_blocking=True)""",
    "emptied": "torch.cuda.empty_cache()",
    "reset": "torch.cuda.reset_peak_memory_stats({device})",
    "synchronised": "torch.cuda.synchronize({device})",
    "event": "{name} = torch.cuda.Event()\n{name}.record()\n{name}.query()",
    "graph": """
        with torch.cuda.device({device}):
            {name} = torch.cuda.CUDAGraph(), torch.zeros(1024, device='cuda:{device}')
            with torch.cuda.graph({name}[0]):
                {name} += ({name}[1] * 2,)
        del {name}""",
    "pool": """
        with torch.cuda.device({device}):
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                {name} = torch.empty({size}, dtype=torch.uint8, device='cuda:{device}')
        del {name}, pool""",
    "raw": """
        {name} = torch.cuda.caching_allocator_alloc({large}, {device})
        torch.cuda.caching_allocator_delete({name})""",
    "workspace": "torch.nn.Linear(16, 16, device='cuda:{device}')(torch.ones(4, 16, device='cuda:{device}'))",
    "plan": "torch.fft.fft(torch.ones(64, device='cuda:{device}'))",
    "backward": "{name} = torch.ones(64, device='cuda:{device}', requires_grad=True)\n({name} * {name}).sum().backward()",
    "cycle": """
        {name} = Node()
        {name}.itself, {name}.data = {name}, torch.empty({size}, dtype=torch.uint8, device='cuda:{device}')
        del {name}""",
}

LEAKS = {
    "tensor": "KEPT.append(torch.empty({large}, dtype=torch.uint8, device='cuda:{device}'))",
    "view": "KEPT.append(torch.empty({large}, dtype=torch.uint8, device='cuda:{device}')[1:2])",
    "stream": """
        with torch.cuda.device({device}), torch.cuda.stream(stream({device}, 0)):
            KEPT.append(torch.empty({large}, dtype=torch.uint8, device='cuda:{device}'))
            KEPT[-1].record_stream(torch.cuda.default_stream())""",
    "raw": "KEPT.append(torch.cuda.caching_allocator_alloc({large}, {device}))",
    "pinned": "KEPT.append(torch.empty({large}, dtype=torch.uint8, pin_memory=True))",
    "graph": """
        with torch.cuda.device({device}):
            graph, start = torch.cuda.CUDAGraph(), torch.zeros(1 << 18, device='cuda:{device}')
            with torch.cuda.graph(graph):
                KEPT.append((graph, start, start * 2))""",
    "pool": """
        with torch.cuda.device({device}):
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                KEPT.append((pool, torch.empty({large}, dtype=torch.uint8, device='cuda:{device}')))""",
    "loss": """
        weight = torch.ones({large} // 4, device='cuda:{device}', requires_grad=True)
        KEPT.append((weight * weight).sum())""",
    "node": """
        weight = torch.ones({large} // 4, device='cuda:{device}', requires_grad=True)
        KEPT.append((weight * weight).exp().sum().grad_fn)""",
}


@dataclasses.dataclass(frozen=True)
class Program:
    """One test: its source, the leak that is planted (None: none), and whether it makes a cycle."""

    source: str
    leak: str | None
    cycle: bool


def draw_program(name: str, draw: random.Random, devices: int) -> Program:
    """Draw one test with this name."""

    def fill(template: str, number: int) -> str:
        size = draw.choice(SIZES)
        text = textwrap.dedent(template).strip()
        return text.format(
            name=f"part{number}", size=size, large=max(size, SMALLEST_LEAK), device=draw.randrange(devices)
        )

    chosen = [draw.choice(list(STEPS)) for _ in range(draw.randint(1, 8))]
    parts = [fill(STEPS[step], number) for number, step in enumerate(chosen)]
    leak = draw.choice(list(LEAKS)) if draw.random() < LEAKING_SHARE else None
    if leak is not None:
        parts.append(fill(LEAKS[leak], len(parts)))
    body = textwrap.indent("\n".join(parts), "    ")
    return Program(f"def {name}():\n{body}\n", leak, "cycle" in chosen)


def what_is_wrong(program: Program, test: dict[str, Any]) -> str:
    """Tell in a few words how a verdict differs from what was planted; empty where it does not."""
    if program.leak is not None:
        return "" if test["verdict"] == "leaked" else f"the leak ({program.leak}) is missed: {test['verdict']}"
    expected = ("clean", "noted") if program.cycle else ("clean",)
    if test["verdict"] in expected:
        return ""
    kinds = [f"{found['kind']} {found['bytes']} bytes on {found['device']}" for found in test["findings"]]
    return f"no leak, but {test['verdict']}: {'; '.join(kinds)}"


def count_devices() -> int:
    """Return the number of CUDA devices, at most 2. Ends the program where there is none."""
    try:
        import torch
    except ImportError:
        sys.exit("torch is not installed for this Python")
    count: int = torch.cuda.device_count()
    if not count:
        sys.exit("no CUDA device: run it on a machine with one, or in the environment of scripts/test-cuda")
    return min(count, 2)


def main() -> int:
    """Run the programs; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=IN_A_PROCESS)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    devices = count_devices()
    print(f"seed {arguments.seed}, {arguments.programs} programs on {devices} devices", flush=True)
    wrong, failed, done = 0, 0, 0
    draw = random.Random(arguments.seed)
    leaks: collections.Counter[str | None] = collections.Counter()
    while done < arguments.programs:
        count = min(IN_A_PROCESS, arguments.programs - done)
        programs = {
            (name := f"test_{done + number}"): draw_program(name, draw, devices) for number in range(count)
        }  # fmt: skip
        source = "\n".join([HEAD, *(program.source for program in programs.values())])
        for test in run_suite(source)["tests"]:
            program = programs[test["nodeid"].rpartition("::")[2]]
            if test["outcome"] != "passed":
                failed += 1  # it fails without the plugin too: a capture that meets another call
                continue
            leaks[program.leak] += 1
            why = what_is_wrong(program, test)
            if why:
                wrong += 1
                print(
                    f"{test['nodeid'].rpartition('::')[2]}: {why}\n{textwrap.indent(program.source, '    ')}",
                    flush=True,
                )
        done += count
        planted = sum(leaks.values()) - leaks[None]
        print(f"{done} programs, {planted} with a leak: {wrong} wrong, {failed} failed by themselves", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

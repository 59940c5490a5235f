"""Runs random programs against torch's CUDA allocator, and compares each verdict with what was planted.

    python benchmarks/allocator_programs.py --programs 10000          # a fresh seed, printed first
    python benchmarks/allocator_programs.py --seed 7 --programs 300   # the programs of a seed again

Each program is a test of one to eight steps on one or two devices (allocator_steps.py): tensors of
sizes around the allocator's blocks, views, streams with `record_stream`, pinned memory, `empty_cache`, resets of the
peaks, graphs, memory pools, raw allocations, workspaces, cycles. One in eight plants a leak, whose verdict, device and
bytes are compared. They run in processes of 500 under the plugin, on a device or on the stand-in runtime of
tests/cuda_standin, whose environment it is started in; then once more without the plugin, which must change no outcome.
Prints one line for each verdict that is wrong, then a summary; the exit status is 1 where any is.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import random
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocator_steps import HEAD, LEAKS, SIZES, STEPS, Leak
from device_suite import failed_without_the_plugin, run_suite

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAMS = 300
SMALLEST_LEAK = 513
"""Bytes of the smallest leak that must be found: the smallest beyond one block of the allocator."""
ONE_LEAKS_IN = 8
BATCH = 500
"""Programs of one process: what they have shown is printed before the next ones run."""
LIMIT_S_EACH = 2
"""Seconds that a program may take on average, on a machine with other work."""


@dataclasses.dataclass(frozen=True)
class Program:
    """One test: the body's source, the leak that is planted with its device and bytes, and whether it makes a cycle."""

    body: str
    leak: str | None
    device: str
    bytes: int
    cycle: bool


def fill(template: str, number: int, size: int, device: int, devices: int) -> str:
    """Fill in the part's own variable, its size and its device."""
    other = (device + 1) % devices
    text = textwrap.dedent(template).strip()
    return text.format(name=f"part{number}", size=size, device=device, other=other)


def draw_steps(draw: random.Random, devices: int) -> Program:
    """Draw the body of a test that leaves nothing behind."""
    chosen = [draw.choice(list(STEPS)) for _ in range(draw.randint(1, 8))]
    parts = [
        fill(STEPS[name], number, draw.choice(SIZES), draw.randrange(devices), devices)
        for number, name in enumerate(chosen)
    ]
    return Program("\n".join(parts), None, "", 0, "cycle" in chosen)


def plant(draw: random.Random, devices: int, program: Program, name: str) -> Program:
    """Add a leak of this kind, of a drawn size on a drawn device, at the end of a program."""
    leaked, at = max(draw.choice(SIZES), SMALLEST_LEAK), draw.randrange(devices)
    leak = LEAKS[name]
    body = f"{program.body}\n{fill(leak.source, 8, leaked, at, devices)}"
    where = "cpu" if leak.on_host else f"cuda:{at}"
    return Program(body, name, where, leak.bytes or leaked, program.cycle)


def draw_program(draw: random.Random, devices: int) -> Program:
    """Draw the body of a test, and for one in eight a leak."""
    program = draw_steps(draw, devices)
    if draw.randrange(ONE_LEAKS_IN):
        return program
    name = draw.choice(list(LEAKS))
    return plant(draw, devices, program, name)


def write_tests(programs: Mapping[str, Program]) -> str:
    """Write a test file of programs by the names of their tests."""
    bodies = (f"def {name}():\n{textwrap.indent(program.body, '    ')}\n" for name, program in programs.items())
    return "\n".join([HEAD, *bodies])


def what_is_wrong(program: Program, test: dict[str, Any]) -> str:
    """Tell in a few words how a verdict differs from what was planted; empty where it does not."""
    kinds = [f"{found['kind']} {found['bytes']} bytes on {found['device']}" for found in test["findings"]]
    said = "; ".join([test["verdict"], *kinds])
    if program.leak is None:
        expected = ("clean", "noted") if program.cycle else ("clean",)
        return "" if test["verdict"] in expected else f"no leak, but {said}"
    leak: Leak = LEAKS[program.leak]
    if test["verdict"] != leak.verdict(program.bytes):
        return f"the leak ({program.leak}, {program.bytes} bytes on {program.device}) is missed: {said}"
    found = [one for one in test["findings"] if one["kind"] != "cycle"]
    if any(one["device"] != program.device for one in found):
        return f"the leak ({program.leak}) is on {program.device}, but: {said}"
    total = sum(one["bytes"] for one in found)
    if not program.bytes <= total <= program.bytes + leak.more:
        return f"the leak ({program.leak}) has {program.bytes} bytes, but: {said}"
    return ""


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


@dataclasses.dataclass
class Result:
    """What the programs that have run have shown: how many leaks of each kind were judged, and what was not as planted."""

    leaks: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    wrong: int = 0
    failed: int = 0
    missing: int = 0

    def __str__(self) -> str:
        programs = sum(self.leaks.values()) + self.failed + self.missing
        planted = sum(self.leaks.values()) - self.leaks["none"]
        said = f"{programs} programs, {planted} with a leak: {self.wrong} wrong, {self.failed} failed by themselves"
        return f"{said}, {self.missing} have no verdict" if self.missing else said


def run_batch(tests: dict[str, Program], result: Result) -> None:
    """Run programs, with the plugin and without it, add up what they show, and print what is wrong."""
    source = write_tests(tests)
    limit_s = 300 + LIMIT_S_EACH * len(tests)
    report = run_suite(source, limit_s)
    failing = failed_without_the_plugin(source, limit_s)
    for test in report["tests"]:
        name = test["nodeid"].rpartition("::")[2]
        program = tests.pop(name)
        if test["outcome"] != "passed":
            result.failed += 1
            why = "" if name in failing else f"fails only with the plugin: {test['outcome']}"
        else:
            result.leaks[program.leak or "none"] += 1
            why = what_is_wrong(program, test)
        if why:
            result.wrong += 1
            print(f"{name}: {why}\n{textwrap.indent(program.body, '    ')}", flush=True)
    result.missing += len(tests)
    for name in tests:
        print(f"{name} has no verdict", flush=True)


def main() -> int:
    """Run the programs; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=PROGRAMS)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--write", type=Path, help="also write the programs to this test file")
    arguments = parser.parse_args()
    devices = count_devices()
    print(f"seed {arguments.seed}, {arguments.programs} programs on {devices} devices", flush=True)
    draw = random.Random(arguments.seed)
    drawn = [(f"test_{number}", draw_program(draw, devices)) for number in range(arguments.programs)]
    if arguments.write is not None:
        arguments.write.write_text(write_tests(dict(drawn)), encoding="utf-8")
    result = Result()
    for start in range(0, len(drawn), BATCH):
        if start:
            print(f"so far {result}", flush=True)
        run_batch(dict(drawn[start : start + BATCH]), result)
    print(", ".join(f"{name}: {count}" for name, count in sorted(result.leaks.items())))
    print(result, flush=True)
    return 1 if result.wrong or result.missing else 0


if __name__ == "__main__":
    sys.exit(main())

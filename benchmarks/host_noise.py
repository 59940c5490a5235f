"""The growth that each host probe sees over clean tests: what its `floor` must exceed.

    python benchmarks/host_noise.py [--tests 1000] [heap tracemalloc pympler rss]

1,000 mixed tests that leave nothing behind (threads, DataLoader workers where torch is there, allocator noise, imports,
garbage) run in this process; each probe reads before and after every test, as the plugin does. Printed are the largest
growths, and how many tests would be made suspects at the default limit of 10 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.util
import json
import random
import re
import threading
import time
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.host.modes import NAMES, host_probes
from pytest_gpuleak.model.readings import ProbeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20
MODULES = ("decimal", "xml.dom.minidom", "sqlite3", "email.mime.multipart", "unittest.mock", "asyncio", "ctypes", "http.server",
           "multiprocessing.pool", "concurrent.futures", "zipfile", "csv", "difflib", "logging.handlers", "ssl", "pdb")  # fmt: skip


def nothing(_: int) -> None:
    assert True


def text(number: int) -> None:
    assert json.loads(json.dumps([{"a": i, "b": str(i)} for i in range(2000)]))[0]["a"] == 0
    re.compile(f"a{number}+b").match("aab")


def threads(_: int) -> None:
    results: list[int] = []
    workers = [threading.Thread(target=lambda: results.append(len(bytearray(2 * MIB)))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def fragments(number: int) -> None:
    source = random.Random(number)
    blocks = [bytearray(source.randrange(600, 200_000)) for _ in range(300)]
    source.shuffle(blocks)
    del blocks[::2]


def garbage(_: int) -> None:
    for _ in range(500):
        cycle: list[object] = [bytearray(1000)]
        cycle.append(cycle)


def imports(number: int) -> None:
    importlib.import_module(MODULES[number // 10 % len(MODULES)])


def tensors(_: int) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    model(torch.ones(64, 256)).sum().backward()


def loader(number: int) -> None:
    import torch

    workers = 2 if number % 100 == 5 else 0  # each worker is a process
    data = torch.utils.data.TensorDataset(torch.ones(64, 16))
    assert len(list(torch.utils.data.DataLoader(data, batch_size=8, num_workers=workers))) == 8


def kinds() -> list[Callable[[int], None]]:
    """The tests, in turn."""
    found: list[Callable[[int], None]] = [nothing, text, threads, fragments, garbage, imports, nothing, text]
    return [*found, tensors, loader] if importlib.util.find_spec("torch") else found


def measure(name: str, tests: int) -> None:
    """One probe over all tests: prints a row of the table."""
    (probe,) = host_probes([name])
    try:
        probe.start()
    except ProbeUnavailable as reason:
        print(f"{name:12} {reason}")
        return
    growths: list[tuple[int, str]] = []
    started = time.perf_counter()
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(probe.stop)
        gc.freeze()
        stack.callback(gc.unfreeze)
        suite = kinds()
        for number in range(tests):
            test = suite[number % len(suite)]
            before = probe.read()
            test(number)
            growth = probe.read() - before
            if growth > 64 * 1024:  # settle, as the plugin does: a collection of what was born
                gc.collect()
                growth = probe.read() - before
            growths.append((growth, f"{test.__name__} {number}"))
    seconds = time.perf_counter() - started
    growths.sort(reverse=True)
    over = sum(growth > 10 * MIB for growth, _ in growths)
    warm = max((growth for growth, label in growths if int(label.split()[1]) >= len(suite)), default=0)
    worst = ", ".join(f"{growth / MIB:.2f} ({label})" for growth, label in growths[:4])
    p99 = growths[len(growths) // 100][0] / MIB
    print(f"{name:12} {p99:8.3f} {warm / MIB:9.2f} {over:9} {seconds:6.1f}  {worst}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probes", nargs="*", default=["heap", "rss", "pympler", "tracemalloc"], help=", ".join(NAMES))
    parser.add_argument("--tests", type=int, default=1000)
    options = parser.parse_args()
    print(f"{'MiB':12} {'p99':>8} {'most warm':>9} {'over 10':>9} {'s':>6}  largest")
    for name in options.probes:
        measure(name, options.tests)


if __name__ == "__main__":
    main()

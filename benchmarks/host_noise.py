"""The growth that each host probe sees over clean tests: what its `floor` must exceed.

    python benchmarks/host_noise.py [--tests 1000] [heap rss pympler tracemalloc]

Mixed tests that leave nothing behind (threads, DataLoader workers where torch is there, allocator noise, imports, garbage) are
run once a probe by ``pytest --gpu-leak --gpu-leak-host=PROBE``, and the growth of each test is read from the report. Printed
are the largest growths, and how many tests would be suspects at the default limit of 10 MiB.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB = 2**20

SUITE = """
import importlib, json, random, re, threading
import pytest

MIB = 2**20
MODULES = ("decimal", "xml.dom.minidom", "sqlite3", "email.mime.multipart", "unittest.mock", "asyncio", "ctypes",
           "http.server", "multiprocessing.pool", "concurrent.futures", "zipfile", "csv", "difflib", "logging.handlers",
           "ssl", "pdb")

def nothing(_):
    assert True

def text(number):
    assert json.loads(json.dumps([{"a": i, "b": str(i)} for i in range(2000)]))[0]["a"] == 0
    re.compile(f"a{number}+b").match("aab")

def threads(_):
    results = []
    workers = [threading.Thread(target=lambda: results.append(len(bytearray(2 * MIB)))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

def fragments(number):
    source = random.Random(number)
    blocks = [bytearray(source.randrange(600, 200_000)) for _ in range(300)]
    source.shuffle(blocks)
    del blocks[::2]

def garbage(_):
    for _ in range(500):
        cycle = [bytearray(1000)]
        cycle.append(cycle)

def imports(number):
    importlib.import_module(MODULES[number // 10 % len(MODULES)])

def tensors(_):
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    model(torch.ones(64, 256)).sum().backward()

def loader(number):
    import torch
    workers = 2 if number % 100 == 5 else 0  # each worker is a process
    data = torch.utils.data.TensorDataset(torch.ones(64, 16))
    assert len(list(torch.utils.data.DataLoader(data, batch_size=8, num_workers=workers))) == 8

KINDS = [nothing, text, threads, fragments, garbage, imports, nothing, text, *([tensors, loader] if TORCH else [])]

@pytest.mark.parametrize("number", range(TESTS))
def test_clean(number):
    KINDS[number % len(KINDS)](number)
"""


def measure(folder: Path, name: str, kinds: int) -> None:
    """Run the suite with one probe, and print a row of the table."""
    options = ["--gpu-leak", f"--gpu-leak-host={name}", "--gpu-leak-report=r.json", "-q", "-p", "no:cacheprovider"]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=folder, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    tests = json.loads((folder / "r.json").read_text(encoding="utf-8"))["tests"]
    found = [(test["nodeid"], test["memory"].get("host", {})) for test in tests]
    growths = [
        (counters[f"{name}_after"] - counters[f"{name}_before"], nodeid.partition("::")[2])
        for nodeid, counters in found
        if f"{name}_before" in counters
    ]
    if not growths:
        print(f"{name:12} {done.stdout.splitlines()[-1] if done.stdout else done.stderr}")
        return
    warm = max(growth for growth, _ in growths[kinds:])
    growths.sort(reverse=True)
    over = sum(growth > 10 * MIB for growth, _ in growths)
    worst = ", ".join(f"{growth / MIB:.2f} ({label})" for growth, label in growths[:4])
    p99 = growths[len(growths) // 100][0] / MIB
    print(f"{name:12} {p99:8.3f} {warm / MIB:9.2f} {over:9} {seconds:6.1f}  {worst}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probes", nargs="*", default=["heap", "rss", "pympler", "tracemalloc"])
    parser.add_argument("--tests", type=int, default=1000)
    options = parser.parse_args()
    torch = importlib.util.find_spec("torch") is not None
    print(f"{'MiB':12} {'p99':>8} {'most warm':>9} {'over 10':>9} {'s':>6}  largest")
    with tempfile.TemporaryDirectory() as folder:
        source = SUITE.replace("TESTS", str(options.tests)).replace("TORCH", str(torch))
        Path(folder, "test_noise.py").write_text(source, encoding="utf-8")
        Path(folder, "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        for name in options.probes:
            measure(Path(folder), name, 10 if torch else 8)


if __name__ == "__main__":
    main()

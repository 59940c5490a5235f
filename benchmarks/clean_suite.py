"""Clean suites of 1,000 mixed tests under ``--gpu-leak``: nothing may be found, run after run.

    python benchmarks/clean_suite.py [--runs 10] [--tests 1000] [pytest arguments, such as --gpu-leak-host=heap,rss]

The tests are those of `host_noise.py` (threads, DataLoader workers where torch is there, imports, garbage, allocator noise)
and, where numpy is there, arrays that come and go.
Each run is a process of its own, in another random order. Exit status 1 where a test is found to leak, or fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import host_noise

NUMPY = """
import numpy as np

DATA = np.random.default_rng(1).normal(size=(400, 300))
FILLED_ONCE = {}

def arrays(number):
    assert (np.ones((200 + number % 50, 300)) * 2).sum()
    np.sort(np.random.default_rng(number).normal(size=50_000))

def algebra(number):
    np.linalg.lstsq(DATA, DATA[:, number % 300], rcond=None)
    np.fft.fft(DATA[number % 400])

def saved(number):
    with tempfile.TemporaryDirectory() as folder:
        np.savez(folder + "/a.npz", a=DATA)
        with np.load(folder + "/a.npz") as archive:
            assert archive["a"].sum() == DATA.sum()

def cached(number):
    FILLED_ONCE.setdefault(number % 3, np.ones(10_000))

def array_cycle(number):
    cycle = [np.ones(100_000)]
    cycle.append(cycle)

KINDS += [arrays, algebra, saved, cached, array_cycle]
"""
"""Further tests, where numpy is there."""


def suite(seed: int, tests: int) -> str:
    """The source of a suite: the tests of `host_noise.py` in a random order, and those of NumPy."""
    torch, numpy = (importlib.util.find_spec(name) is not None for name in ("torch", "numpy"))
    source = host_noise.SUITE.replace("TORCH", str(torch))
    kinds, mark, test = source.partition("@pytest.mark.parametrize")
    order = f"ORDER = list(range({tests}))\nrandom.Random({seed}).shuffle(ORDER)\n"
    return "import tempfile\n" + kinds + NUMPY * numpy + order + mark + test.replace("range(TESTS)", "ORDER")


def run(seed: int, tests: int, arguments: list[str]) -> tuple[Counter[str], float]:
    """One run: what was found, by kind or verdict, and its seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.joinpath("test_clean.py").write_text(suite(seed, tests))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--gpu-leak",
                   "--gpu-leak-report=report.json", f"--rootdir={folder}", *arguments]  # fmt: skip
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        report = json.loads(folder.joinpath("report.json").read_text())
    found: Counter[str] = Counter()
    for record in [*report["tests"], *report["fixtures"]]:
        for finding in record["findings"]:
            if finding["kind"] != "cycle":
                print(record.get("nodeid"), finding["kind"], finding["bytes"], finding["holder"])
            found[f"{finding['kind']}{' (failed)' if finding['failed'] else ''}"] += 1
    if done.returncode or report["summary"]["clean"] + report["summary"]["noted"] != tests:
        found["exit status not 0, or a test not clean"] += 1
        print(done.stdout[-3000:])
    return found, seconds


def main() -> int:
    """Run the suites and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--tests", type=int, default=1000)
    options, arguments = parser.parse_known_args()
    bad = 0
    for seed in range(options.runs):
        found, seconds = run(seed, options.tests, arguments)
        print(f"run {seed}: {seconds:.1f} s; {dict(found) or 'nothing found'}", flush=True)
        bad += any(kind != "cycle" for kind in found)
    print(f"{options.runs - bad} of {options.runs} runs without a finding")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())

"""Clean suites of 1,000 mixed tests under ``--gpu-leak``: nothing may be found, run after run.

    python benchmarks/clean_suite.py [--runs 10] [--tests 1000] [pytest arguments, such as --gpu-leak-host=heap,rss]

The tests are those of `host_noise.py`: threads, DataLoader workers where torch is there, imports, garbage, allocator noise.
Each run is a process of its own, in another random order. Exit status 1 where a test is found to leak, or fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

SUITE = """
import random

import pytest

import host_noise

KINDS = host_noise.kinds()
ORDER = [(KINDS[number % len(KINDS)], number) for number in range({tests})]
random.Random({seed}).shuffle(ORDER)


@pytest.mark.parametrize(("kind", "number"), ORDER, ids=lambda value: getattr(value, "__name__", str(value)))
def test_clean(kind, number):
    kind(number)
"""


def run(seed: int, tests: int, arguments: list[str]) -> tuple[Counter[str], float]:
    """One run: what was found, by kind or verdict, and its seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.joinpath("test_clean.py").write_text(SUITE.format(tests=tests, seed=seed))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--gpu-leak",
                   "--gpu-leak-report=report.json", f"--rootdir={folder}", *arguments]  # fmt: skip
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        report = json.loads(folder.joinpath("report.json").read_text())
    found: Counter[str] = Counter()
    for record in [*report["tests"], *report["fixtures"]]:
        for finding in record["findings"]:
            found[f"{finding['kind']}{' (failed)' if finding['failed'] else ''}"] += 1
    if done.returncode or report["summary"]["clean"] + report["summary"]["noted"] != tests:
        found["exit status not 0, or a test not clean"] += 1
        print(done.stdout[-3000:])
    return found, seconds


def environment() -> dict[str, str]:
    """This process's, with the benchmarks importable."""
    import os

    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent)}


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

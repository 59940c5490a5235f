"""What each probe costs: a reading, a recorded re-run, and the slow-down of a typical test while tracemalloc traces.

    python benchmarks/probes.py [--rounds 5] [--bare]

A reading is taken before and after each test, so a test costs two of them; a record is made for suspects alone. The device
probe is measured where a device is present and torch can use it. Medians over the rounds. `--bare`: without torch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import statistics
import time
import timeit
from typing import Any

from pytest_gpuleak.adapters.host.modes import host_probes
from pytest_gpuleak.explain.large_objects import recorder_of
from pytest_gpuleak.model.readings import ProbeUnavailable


def typical_test() -> None:
    """Some milliseconds of what tests do: parse, build, compare; with torch a step of training."""
    rows = json.loads(json.dumps([{"a": i, "b": [str(i)]} for i in range(2000)]))
    assert max(rows, key=lambda row: row["a"])["a"] == 1999
    torch: Any = TORCH
    if torch is not None:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
        model(torch.ones(64, 64)).sum().backward()


def median_s(statement: Any, number: int, rounds: int) -> float:
    """Seconds for one execution."""
    return statistics.median(timeit.repeat(statement, number=number, repeat=rounds)) / number


def measure(name: str, rounds: int, bare_s: float) -> None:
    """One host probe: prints its row."""
    (probe,) = host_probes([name])
    try:
        probe.start()
    except ProbeUnavailable as reason:
        print(f"{name:14} {reason}")
        return
    try:
        read_s = median_s(probe.read, 2000, rounds)
        begins, ends = [], []
        recorder = recorder_of(probe)
        for _ in range(rounds):
            started = time.perf_counter()
            recorder.begin_record()
            begins.append(time.perf_counter() - started)
            started = time.perf_counter()
            recorder.end_record()
            ends.append(time.perf_counter() - started)
        test_s = median_s(typical_test, 20, rounds)
    finally:
        probe.stop()
    begin_s, end_s = statistics.median(begins), statistics.median(ends)
    print(f"{name:14} {read_s * 1e6:9.2f} {2 * read_s * 1e6:11.2f} {begin_s:9.3f} {end_s:9.3f} {test_s / bare_s:10.2f}")


def measure_device(rounds: int) -> None:
    """The device probe, where there is a device."""
    torch: Any = TORCH
    if torch is None or not torch.cuda.is_available():
        print(f"{'device':14} no device here")
        return
    torch.ones(1, device="cuda")
    found: Any = None
    with contextlib.suppress(ImportError, AttributeError):
        module: Any = importlib.import_module("pytest_gpuleak.adapters.torch.devices")
        found = module.TorchDevices()
    if found is None:
        print(f"{'device':14} the package has no device probe")
        return
    read_s = median_s(found.read, 500, rounds)
    print(f"{'device':14} {read_s * 1e6:9.2f} {2 * read_s * 1e6:11.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bare", action="store_true", help="without torch")
    options = parser.parse_args()
    global TORCH  # noqa: PLW0603 - read by the typical test
    if not options.bare and importlib.util.find_spec("torch"):
        TORCH = importlib.import_module("torch")
    typical_test()
    bare_s = median_s(typical_test, 20, options.rounds)
    print(f"a typical test takes {bare_s * 1e3:.2f} ms; torch {'imported' if TORCH else 'not imported'}")
    print(f"{'probe':14} {'read us':>9} {'us a test':>11} {'begin s':>9} {'end s':>9} {'slow-down':>10}")
    for name in ("heap", "rss", "pympler", "tracemalloc"):
        measure(name, options.rounds, bare_s)
    measure_device(options.rounds)


TORCH: Any = None

if __name__ == "__main__":
    main()

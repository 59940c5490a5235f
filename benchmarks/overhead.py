"""What the check costs on clean tests, beside what users would pick instead: all in one run, in turn.

    python benchmarks/overhead.py                 # everything, a few minutes
    python benchmarks/overhead.py tests heap      # only these parts

Parts: `tests` (300 trivial torch tests under each alternative), `heap` (the same with 2 million objects more on the
heap), `start` (an empty suite, the plugin installed and off), `memory` (peak resident set over 5,000 tests that make
cyclic garbage). Machines are noisy: the alternatives take turns, and the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time

TESTS = """
import pytest
import torch

{extra}

@pytest.mark.parametrize("i", range({count}))
def test_trivial(i):
    x = torch.ones(16, 16)
    assert (x + i).sum() == 256 * (1 + i)
"""
MILLIONS = "HEAP = [[i] for i in range(2_000_000)]\n"
GARBAGE = """
import pytest

class Node:
    def __init__(self):
        self.itself, self.data = self, bytearray(1000)

@pytest.mark.parametrize("i", range(5000))
def test_cycles(i):
    for _ in range(20):
        Node()
"""
COLLECT_FIXTURE = """
import gc, pytest

@pytest.fixture(autouse=True)
def collect():
    yield
    gc.collect()
"""
SCAN_FIXTURE = """
import gc, pytest, torch

@pytest.fixture(autouse=True)
def scan():
    gc.collect()
    before = {id(o) for o in gc.get_objects() if issubclass(type(o), torch.Tensor)}
    yield
    gc.collect()
    assert not [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and id(o) not in before]
"""
PLAIN = ["-p", "no:gpuleak", "-p", "no:memray"]
ALTERNATIVES: dict[str, tuple[str, list[str]]] = {
    "no plugin": ("", PLAIN),
    "--gpu-leak": ("", ["-p", "no:memray", "--gpu-leak"]),
    "gc.collect() fixture": (COLLECT_FIXTURE, PLAIN),
    "gc scan fixture": (SCAN_FIXTURE, PLAIN),
    "pytest-memray": ("", ["-p", "no:gpuleak", "--memray"]),
}

SLOW = {"gc scan fixture"}


def run_pytest(folder: pathlib.Path, options: list[str]) -> tuple[float, int]:
    """Run pytest in a folder; its seconds and its peak resident set in bytes."""
    # Other installed plugins would add their own noise.
    others = {entry.name for entry in importlib.metadata.entry_points(group="pytest11")} - {"gpuleak", "memray"}
    blocked = [word for name in sorted(others) for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *blocked, *options]
    started = time.perf_counter()
    # Compiled modules are kept, as in any installation.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) not in (0, 5):
        raise SystemExit(f"pytest failed: {' '.join(command)}")
    return seconds, usage.ru_maxrss * 1024


def make_suite(root: pathlib.Path, name: str, tests: str, conftest: str) -> pathlib.Path:
    """A folder with one test file and a conftest.py."""
    folder = root / name.replace(" ", "_").replace("(", "").replace(")", "")
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(conftest)
    if tests:
        (folder / "test_it.py").write_text(tests)
    return folder


def own_time(folder: pathlib.Path) -> tuple[float, float]:
    """Microseconds a test that the plugin counts: the mean over all, and the median."""
    run_pytest(folder, ["-p", "no:memray", "--gpu-leak", "--gpu-leak-report=report.json"])
    report = json.loads((folder / "report.json").read_text())
    each = [test["overhead_s"] * 1e6 for test in report["tests"]]
    return statistics.mean(each), statistics.median(each)


def measure_tests(root: pathlib.Path, rounds: int, extra: str, names: list[str]) -> None:
    """Whole runs of 300 trivial tests under each alternative."""
    suites = {
        name: make_suite(root, name, textwrap.dedent(TESTS).format(count=300, extra=extra), ALTERNATIVES[name][0])
        for name in names
    }
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        if name not in SLOW:
            run_pytest(suites[name], ALTERNATIVES[name][1])  # warm the disk cache
    for number in range(rounds):
        order = names if number % 2 == 0 else names[::-1]
        for name in order:
            if name in SLOW and number:
                times[name].append(times[name][0])  # minutes a run: one must do
                continue
            times[name].append(run_pytest(suites[name], ALTERNATIVES[name][1])[0])
    print(f"{'':24} {'median s':>9} {'ratio':>7}  each round's ratio to no plugin")
    for name, seconds in times.items():
        ratios = [one / base for one, base in zip(seconds, times["no plugin"], strict=True)]
        listed = " ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"{name:24} {statistics.median(seconds):9.2f} {statistics.median(ratios):7.3f}  {listed}")
    mean, median = own_time(suites["--gpu-leak"])
    print(f"the plugin's own time: {mean:.0f} us a test (mean), {median:.0f} us (median)")


def measure_start(root: pathlib.Path, rounds: int) -> None:
    """An empty suite: the plugin blocked, and installed but off."""
    folder = make_suite(root, "empty", "", "")
    variants = {"blocked": PLAIN, "installed, off": ["-p", "no:memray"]}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name in list(variants)[:: 1 if number % 2 else -1]:
            seconds = run_pytest(folder, variants[name])[0]
            if number:
                times[name].append(seconds)
    ratios = [on / off for on, off in zip(times["installed, off"], times["blocked"], strict=True)]
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    print(f"blocked {medians['blocked'] * 1e3:.1f} ms, installed and off {medians['installed, off'] * 1e3:.1f} ms")
    print(f"ratio of the medians {medians['installed, off'] / medians['blocked']:.3f}")
    print(f"ratio of the minima {min(times['installed, off']) / min(times['blocked']):.3f}")
    print(f"median of the {rounds} rounds' ratios {statistics.median(ratios):.3f}")


def measure_memory(root: pathlib.Path, rounds: int) -> None:
    """Peak resident set over 5,000 tests that make cyclic garbage."""
    folder = make_suite(root, "garbage", GARBAGE, "")
    peaks: dict[str, list[int]] = {"no plugin": [], "--gpu-leak": []}
    for _ in range(rounds):
        for name, values in peaks.items():
            values.append(run_pytest(folder, ALTERNATIVES[name][1])[1])
    medians = {name: statistics.median(values) for name, values in peaks.items()}
    for name, value in medians.items():
        print(f"{name:24} {value / 2**20:8.1f} MiB")
    print(f"ratio {medians['--gpu-leak'] / medians['no plugin']:.3f}")


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", default=["tests", "heap", "start", "memory"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fast", action="store_true", help="only without and with the plugin")
    options = parser.parse_args()
    names = [name for name in ALTERNATIVES if name != "pytest-memray" or importlib.util.find_spec("pytest_memray")]
    if options.fast:
        names = names[:2]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for part in options.parts:
        print(f"\n== {part}")
        with tempfile.TemporaryDirectory(prefix="gpuleak-overhead-") as folder:
            root = pathlib.Path(folder)
            if part == "tests":
                measure_tests(root, options.rounds, "", names)
            elif part == "heap":
                measure_tests(root, options.rounds, MILLIONS, ["no plugin", "--gpu-leak"])
            elif part == "start":
                measure_start(root, 20)
            elif part == "memory":
                measure_memory(root, 3)
            else:
                parser.error(f"{part!r} is none of tests, heap, start, memory")


if __name__ == "__main__":
    main()

"""What the journal costs a test, and whether a run that is killed leaves every test that had ended.

    python benchmarks/journal.py            # cost: whole runs with and without it, and its writes alone
    python benchmarks/journal.py kills 20   # kill -9 at 20 random moments

Machines are noisy: runs with and without the journal take turns, what counts is the processor's time, and the cost is
the median of the differences.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from pytest_gpuleak.model.records import TestRecord, encode
from pytest_gpuleak.reports.json.journal import Journal

TESTS = """
import pytest

@pytest.mark.parametrize("i", range({count}))
def test_trivial(i):
    pass
"""
WITHOUT = """
import pytest_gpuleak.session.records.recorder

pytest_gpuleak.session.records.recorder.journal_path = lambda paths: None
"""
ROOT = pathlib.Path(__file__).parent.parent


def run_pytest(folder: pathlib.Path) -> float:
    """Run the suite in a folder; seconds of processor time."""
    options = ["-q", "--gpu-leak", "--gpu-leak-report=r.json", "-p", "no:cacheprovider", "-p", "pytest_gpuleak.plugin"]
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *options]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env={**os.environ, **alone})
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"pytest failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime


def measure_runs(root: pathlib.Path, rounds: int, count: int) -> None:
    """Whole runs, with and without."""
    folders = {}
    for name, conftest in {"with": "", "without": WITHOUT}.items():
        folders[name] = root / name
        folders[name].mkdir()
        (folders[name] / "pytest.ini").write_text("[pytest]\n")
        (folders[name] / "conftest.py").write_text(conftest)
        (folders[name] / "test_it.py").write_text(TESTS.format(count=count))
        run_pytest(folders[name])
    taken = [(run_pytest(folders["with"]), run_pytest(folders["without"])) for _ in range(rounds)]
    with_it, without = (statistics.median(column) for column in zip(*taken, strict=True))
    cost = statistics.median(one - other for one, other in taken) / count * 1e6
    print(f"{count} trivial tests: {with_it:.2f} s with the journal, {without:.2f} s without: {cost:.0f} us a test")


def measure_writes(root: pathlib.Path, count: int) -> None:
    """The writes of one test alone: that it runs, and that it has ended."""
    memory = {
        "cuda:0": dict.fromkeys(
            ("allocated_before", "allocated_after", "reserved_before", "reserved_after", "peak"), 1
        ),
        "host": {"heap_before": 12345678, "heap_after": 12345679},
    }
    name = "tests/models/test_thing.py::TestThing::test_it[cuda-float32]"
    record = encode(TestRecord(name, "clean", None, "passed", "main", 0.0123, 0.0000213, memory))
    journal = Journal(root / "r.json")
    journal.begin({"created": "", "environment": {}, "policy": {}})
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        journal.note_running((name,))
        journal.add_test(record)
        taken.append((time.perf_counter() - began) * 1e6)
    journal.close()
    size = (root / "r.json").stat().st_size
    print(
        f"the writes of a clean test: {statistics.median(taken):.0f} us, {size / count:.0f} bytes; {journal.fault or ''}"
    )


def kill_runs(count: int) -> int:
    """The acceptance test, with more kills. Returns pytest's exit status."""
    environment = {**os.environ, "GPULEAK_TEST_KILLS": str(count)}
    command = [sys.executable, "-m", "pytest", "-q", "tests/acceptance/journal/test_killed.py"]
    return subprocess.run(command, cwd=ROOT, check=False, env=environment).returncode


def main() -> int:
    """Measure. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["cost", "kills"], default="cost")
    parser.add_argument("count", nargs="?", type=int, default=20, help="runs to kill")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tests", type=int, default=5000)
    given = parser.parse_args()
    if given.part == "kills":
        return kill_runs(given.count)
    with tempfile.TemporaryDirectory() as folder:
        measure_writes(pathlib.Path(folder), given.tests)
        measure_runs(pathlib.Path(folder), given.rounds, given.tests)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a report costs a test, with the journal that is kept meanwhile: whole runs with and without a report.

    python benchmarks/journal.py

Machines are noisy: runs with and without a report take turns, what counts is the processor's time, and the cost is
the median of the differences. Whether a run that is killed leaves a report, `benchmarks/kills.py` tells.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

TESTS = """
import pytest

@pytest.mark.parametrize("i", range({count}))
def test_trivial(i):
    pass
"""


def run_pytest(folder: pathlib.Path, *more: str) -> float:
    """Run the suite in a folder; seconds of processor time."""
    options = ["-q", "--gpu-leak", "-p", "no:cacheprovider", "-p", "pytest_gpuleak.plugin", *more]
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *options]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env={**os.environ, **alone})
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"pytest failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime


def measure_runs(root: pathlib.Path, rounds: int, count: int) -> None:
    """Whole runs, with a report and without."""
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "test_it.py").write_text(TESTS.format(count=count))
    report = "--gpu-leak-report=r.json"
    run_pytest(root, report)
    taken = [(run_pytest(root, report), run_pytest(root)) for _ in range(rounds)]
    with_it, without = (statistics.median(column) for column in zip(*taken, strict=True))
    cost = statistics.median(one - other for one, other in taken) / count * 1e6
    size = (root / "r.json").stat().st_size / count
    print(f"{count} trivial tests: {with_it:.2f} s with a report, {without:.2f} s without: {cost:.0f} us a test")
    print(f"the report has {size:.0f} bytes a test")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tests", type=int, default=5000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure_runs(pathlib.Path(folder), given.rounds, given.tests)


if __name__ == "__main__":
    main()

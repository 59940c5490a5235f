"""What each host probe costs a test: processor time of whole runs with it and with none, and of tests that do something.

    python benchmarks/probes.py [--rounds 3] [--tests 500]

Runs of ``pytest --gpu-leak --gpu-leak-host=PROBE`` take turns with ``--gpu-leak-host=off``; printed are medians. A trivial test
pays for the readings before and after it; a typical one, which parses and compares some milliseconds long, also for what
`tracemalloc` traces meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROBES = ("heap", "rss", "pympler", "tracemalloc")

TRIVIAL = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_trivial(number):
    pass
"""

TYPICAL = """
import json
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_typical(number):
    rows = json.loads(json.dumps([{{"a": i, "b": [str(i)]}} for i in range(2000)]))
    assert max(rows, key=lambda row: row["a"])["a"] == 1999
"""


def run_pytest(folder: Path, probe: str) -> float:
    """Run the suite in a folder with one probe; return seconds of processor time."""
    command = [sys.executable, "-m", "pytest", "-q", "--gpu-leak", f"--gpu-leak-host={probe}", "-p", "no:cacheprovider"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"pytest failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime


def measure(source: str, count: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return for each probe the microseconds that it costs a test, and how many times as long the run takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        (folder / "test_it.py").write_text(source.format(count=count), encoding="utf-8")
        run_pytest(folder, "off")
        taken = [{probe: run_pytest(folder, probe) for probe in ("off", *PROBES)} for _ in range(rounds)]
    return {
        probe: (
            statistics.median(times[probe] - times["off"] for times in taken) / count * 1e6,
            statistics.median(times[probe] / times["off"] for times in taken),
        )
        for probe in PROBES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tests", type=int, default=500)
    options = parser.parse_args()
    trivial = measure(TRIVIAL, options.tests, options.rounds)
    typical = measure(TYPICAL, max(options.tests // 5, 1), options.rounds)
    print(f"{'':14}{'us a trivial test':>20}{'of the run':>12}{'us a typical test':>20}{'of the run':>12}")
    for probe in PROBES:
        print(
            f"{probe:14}{trivial[probe][0]:20.1f}{trivial[probe][1]:12.2f}{typical[probe][0]:20.1f}{typical[probe][1]:12.2f}"
        )


if __name__ == "__main__":
    main()

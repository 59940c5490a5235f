"""What each of many tests costs that leak into one list: the culprit is searched for once and recognised from then on.

    python benchmarks/repeated_leak.py [--tests 500]

Writes a suite, runs it with ``--gpu-leak`` and prints, from the JSON report, what the plugin took for each leaking test
beyond running it again, which is reckoned to take as long as the first run did.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SUITE = """
import pytest, torch

HISTORY = []


@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    HISTORY.append({{"loss": torch.ones(1024)}})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=500, help="tests that leak")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_leaks.py").write_text(SUITE.format(tests=options.tests))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
        subprocess.run(
            [*command, "--gpu-leak", "--gpu-leak-report=report.json", "test_leaks.py"],
            cwd=folder,
            check=False,
            stdout=subprocess.DEVNULL,
        )
        report = json.loads((Path(folder) / "report.json").read_text())
    leaked = [test for test in report["tests"] if test["verdict"] == "leaked"]
    beyond = [test["overhead_s"] - test["duration_s"] for test in leaked]
    print(f"{len(leaked)} of {options.tests} tests leaked; seconds beyond the re-run:")
    print(f"first {beyond[0]:.3f}, median of the others {statistics.median(beyond[1:]):.3f},", end=" ")
    print(f"mean of all {statistics.fmean(beyond):.3f}, most of the others {max(beyond[1:]):.3f}; goal 0.1")


if __name__ == "__main__":
    main()

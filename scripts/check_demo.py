"""Compare the report of a run of `examples/` with the leaks that are there.

    python scripts/check_demo.py REPORT STATUS

REPORT is the JSON report, STATUS the exit status of pytest. Exit status 0 only if exactly these leaks were found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

EXPECTED = {
    "tests/test_callbacks.py::test_throughput_counts_every_sample",
    "tests/test_loop.py::test_the_loss_falls[4]",
    "fixture index",
}


def main(path: Path, status: str) -> str:
    """Return what is wrong, or nothing."""
    if not path.exists():
        return f"no report was written; pytest's exit status was {status}"
    report = json.loads(path.read_text("utf-8"))
    found = {test["nodeid"] for test in report["tests"] if test["verdict"] == "leaked"}
    found |= {
        f"fixture {fixture['name']}"
        for fixture in report["fixtures"]
        if any(finding["failed"] for finding in fixture["findings"])
    }
    if found == EXPECTED and status == "1":
        return ""
    missed, wrong = sorted(EXPECTED - found), sorted(found - EXPECTED)
    return f"not as expected: missed {missed}, wrong {wrong}, pytest's exit status {status} (1 expected)"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    fault = main(Path(sys.argv[1]), sys.argv[2])
    if fault:
        sys.exit(f"demo: {fault}")
    print(
        "\ndemo: the 3 leaks of examples/ were found, and nothing else; pytest's own exit status was 1, as it should be"
    )

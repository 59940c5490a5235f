"""What large reports cost: peak memory and processor seconds of the command `gpuleak` over many.

    python benchmarks/merge.py [--reports 20] [--tests 10000] [--findings 1000] [--same]

Reports are made up: tests with counters of a GPU and the host, a tenth of them with a finding. `--same`: all reports have the
same tests, as retries and ranks do; else each has its own, as shards do. Targets: a report read and written (`convert`) in under 3 s more than
`--version`, `merge` below 300 MB. Each command runs in a process of its own, whose peak resident set Linux tells.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MIB = 1024 * 1024


def make_finding(number: int) -> dict[str, Any]:
    """One of the size that real ones have: three arrays, a path of four steps."""
    name = f"app.part{number % 97}.registry.HISTORY"
    created = {
        "file": "app/model.py",
        "line": 10 + number % 90,
        "function": "forward",
        "code": "self.meter.update(loss.detach(), output)",
    }
    array = {
        "shape": [64, 1024],
        "dtype": "float32",
        "device": "cuda:0",
        "bytes": MIB // 4,
        "storage_bytes": MIB // 4,
        "created": created,
    }
    return {
        "kind": "growing",
        "failed": True,
        "known": False,
        "device": "cuda:0",
        "count": 3,
        "bytes": 3 * MIB // 4 + number,
        "bytes_per_run": 3 * MIB // 4,
        "fingerprint": f"{number % 97:016x}",
        "tensors": [array] * 3,
        "holder": {
            "kind": "module",
            "root": name,
            "text": f"{name}['train'].losses[0]",
            "path": [
                {"edge": "['train']", "type": "dict"},
                {"edge": ".losses", "type": "app.metrics.Meter"},
                {"edge": "[0]", "type": "list"},
            ],
            "file": "app/metrics.py",
            "line": 12,
            "deciding": None,
        },
        "other_holders": [],
        "autograd": None,
        "hint": f"Keep numbers, not tensors: append loss.item() to {name}.",
        "why_unconfirmed": None,
        "metric": None,
        "contributions": [],
        "evidence": ["cuda:0 allocated +768.0 KiB in each of 2 runs"],
    }


def make_report(shard: str, tests: int, findings: int) -> dict[str, Any]:
    """A report with findings spread evenly over its tests."""
    every = max(1, tests // findings)
    records = [
        {
            "nodeid": f"tests/part{number // 500}/test_module_{number // 50}.py::TestTraining::test_step[{shard}-{number}]",
            "verdict": "leaked" if number % every == 0 else "clean",
            "why_unchecked": None,
            "outcome": "passed",
            "worker": f"gw{number % 4}",
            "duration_s": 0.0123456789 + number / 1000,
            "overhead_s": 0.00001234 + number / 10**9,
            "memory": {
                "cuda:0": {
                    "allocated_before": 1_000_000 + number,
                    "allocated_after": 1_000_512 + number,
                    "reserved_before": 2_097_152 + number,
                    "reserved_after": 2_097_152 + number,
                    "peak": 3_000_000 + number,
                },
                "host": {"heap_before": 12_345_678 + number, "heap_after": 12_346_678 + number},
            },
            "findings": [make_finding(number)] if number % every == 0 else [],
            "allowed": None,
            "file": f"tests/part{number // 500}/test_module_{number // 50}.py",
            "line": 1 + number % 50,
            "faults": [],
        }
        for number in range(tests)
    ]
    leaked = len(range(0, tests, every))
    verdicts = {"clean": tests - leaked, "leaked": leaked, "noted": 0, "allowed": 0, "unchecked": 0}
    return {
        "schema": "pytest-gpuleak/report/1",
        "created": "2026-11-20T19:17:00+00:00",
        "environment": {"python": "3.11", "platform": "Linux", "torch": None, "devices": ["cuda:0 H100"]},
        "policy": {},
        "summary": {"tests": tests, **verdicts, "fixtures_leaked": 0, "overhead_per_test_us": 20.0},
        "tests": records,
        "fixtures": [],
        "stale": [],
        "incomplete": None,
        "faults": [],
    }


def write_reports(folder: Path, options: argparse.Namespace) -> None:
    """Write the reports."""
    for number in range(options.reports):
        report = make_report("same" if options.same else str(number), options.tests, options.findings)
        (folder / f"shard-{number}.json").write_text(json.dumps(report), encoding="utf-8")
    print(f"{options.reports} reports of {(folder / 'shard-0.json').stat().st_size / 1e6:.1f} MB each", flush=True)


def run(name: str, arguments: list[str]) -> None:
    """Run `gpuleak` to its end in a process of its own, and print its seconds of processor time and its peak memory."""
    command = [sys.executable, "-c", _MEASURED, *arguments]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    *_, seconds, kibibytes = done.stderr.split()
    took, peak = float(seconds), int(kibibytes) * 1024 / 1e6
    print(f"{name:9}{took:6.2f} s, peak {peak:.0f} MB{' (target: 300 MB)' if name == 'merge' else ''}", flush=True)


# Not getrusage(): the peak that it tells is the parent's, as long as that is the larger, since it outlives exec().
_MEASURED = """
import sys, time
from pathlib import Path
from pytest_gpuleak.cli import main
try:
    main()
finally:
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(time.process_time(), peak.split()[1], file=sys.stderr)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("reports", 20), ("tests", 10_000), ("findings", 1_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--same", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_reports(folder, options)
        paths = [str(path) for path in sorted(folder.iterdir())]
        run("--version", ["--version"])
        run("convert", ["convert", paths[0], "-o", str(folder / "copy.json")])
        run("merge", ["merge", *paths, "-o", str(folder / "all.json")])
        run("gate", ["gate", *paths])
        run("diff", ["diff", *paths[:2]])
        run("show", ["show", paths[0]])
        with (folder / "all.json").open(encoding="utf-8") as stream:
            print(f"merged   {len(json.load(stream)['tests'])} tests")


if __name__ == "__main__":
    main()

"""Measures what only a CUDA device can show, and writes it as a Markdown page.

    python benchmarks/gpu_figures.py                                   # to stdout
    python benchmarks/gpu_figures.py --out docs/gpu-measurements.md

The figures: the plugin's own time for a clean test that uses the device, with a report, which measures peaks; how many of
1,000 clean tests are suspected (the noise of the counters); the bytes of a context, of cuBLAS's workspaces and of cuFFT's
plans, by the driver and by torch. On the stand-in runtime of tests/cuda_standin the page says so in its first line: times
and sizes are then not a device's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from device_suite import run_suite

MIB = 1 << 20
LIMIT_S = 600

CLEAN = """
import pytest
import torch

@pytest.mark.parametrize("number", range(1000))
def test_clean(number):
    kind = number % 5
    data = torch.ones(1024, 64, device="cuda")
    if kind == 1:
        data = torch.nn.Linear(64, 64, device="cuda")(data)
        data.sum().backward()
    elif kind == 2:
        data = torch.fft.fft(data)
    elif kind == 3:
        stream = torch.cuda.Stream()
        data.record_stream(stream)
    elif kind == 4:
        data = torch.ones(1024, 64).pin_memory().to("cuda", non_blocking=True)
    del data
"""

FIRST_USE = """
import json, torch

def allocated(work):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - before

torch.cuda.init()
torch.empty(1, device="cuda")
free, total = torch.cuda.mem_get_info()
found = {"total": total, "in use after one tensor": total - free, "reserved": torch.cuda.memory_reserved()}
data = torch.ones(512, 512, device="cuda")
found["workspace of cuBLAS"] = allocated(lambda: (data @ data).sum())
found["plan of cuFFT"] = allocated(lambda: torch.fft.fft(data))
free, total = torch.cuda.mem_get_info()
found["in use after both"] = total - free
found["reserved after both"] = torch.cuda.memory_reserved()
found["name"] = torch.cuda.get_device_name()
print(json.dumps(found))
"""


def measure_first_use() -> dict[str, Any]:
    """Measure in a fresh process what the first use of the device and of its libraries takes, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        sys.exit(f"the first use of the device failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def read_driver() -> str:
    """Return the driver's version, or why it is unknown."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception as error:  # noqa: BLE001 - the figures stand without it
        return f"unknown ({type(error).__name__})"


def render(summary: dict[str, Any], first: dict[str, Any], torch_version: str) -> str:
    """Write the page."""
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    where = f"{first['name']}, driver {read_driver()}, torch {torch_version}, Python {platform.python_version()}"
    stand_in = os.environ.get("CUDA_STANDIN") == "1" or "stand-in" in str(first["name"]).lower()
    lines = ["# Measurements on a GPU", ""]
    if stand_in:
        lines += ["**A rehearsal on the stand-in runtime: no figure here is a device's.**", ""]
    suspects = summary["suspects"]
    rows = [
        (
            "1,000 clean tests: leaked, noted, unchecked",
            f"{summary['leaked']}, {summary['noted']}, {summary['unchecked']}",
        ),
        ("own time of a clean test, with a report and peaks (median)", f"{summary['overhead_per_test_us']:.0f} us"),
        ("tests that were suspected, and the check of all", f"{suspects['tests']}, {suspects['check_s']:.2f} s"),
        *((key, f"{value / MIB:,.1f} MiB") for key, value in first.items() if key != "name"),
    ]
    lines += [f"{today}, {where}. `python benchmarks/gpu_figures.py`", "", "| what | figure |", "| --- | --- |"]
    lines += [f"| {what} | {figure} |" for what, figure in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, and write the page; return the exit status: 1 where a clean test was reported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the page to write; else it is printed")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("torch is not installed for this Python")
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: nothing to measure")
    first = measure_first_use()
    summary = run_suite(CLEAN)["summary"]
    page = render(summary, first, torch.__version__)
    if arguments.out is None:
        print(page)
    else:
        arguments.out.write_text(page, encoding="utf-8")
    return 1 if summary["leaked"] or summary["noted"] else 0


if __name__ == "__main__":
    sys.exit(main())

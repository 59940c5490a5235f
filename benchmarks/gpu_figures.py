"""Measures what only a CUDA device can show, and keeps it in a folder, from which gpu_page.py writes the page.

    python benchmarks/gpu_figures.py FOLDER --machine    # which device, driver and versions: machine.json
    python benchmarks/gpu_figures.py FOLDER --page PAGE  # the figures, each kept and on the page as soon as it is measured

The figures: the plugin's own time for a clean test on no device, one and two; what a reading of the counters takes; what the context, cuBLAS, cuFFT and cuDNN take of the device, as torch, `mem_get_info` and NVML count it; the
noise of each counter over 1,000 clean tests. On the stand-in runtime of tests/cuda_standin it is a rehearsal, and
machine.json says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import gpu_page
from device_suite import run_suite
from gpu_programs import CLEAN_TESTS, MACHINE, MOMENTS, NOISE, SMALL_TESTS, run_program

TESTS = 300
"""Tests of each kind by which the own time is measured."""
SAME_MACHINE = ("name", "count", "driver", "torch", "python", "stand_in")
"""What must be the same for results to stand on one page."""

Json = dict[str, Any]


def read_driver() -> str:
    """Return the driver's version, or why it is unknown."""
    try:
        import pynvml

        pynvml.nvmlInit()
        found = pynvml.nvmlSystemGetDriverVersion()
        return found.decode() if isinstance(found, bytes) else str(found)
    except Exception as error:  # noqa: BLE001 - the figures stand without it
        return f"unknown ({type(error).__name__})"


def describe_machine() -> Json:
    """Return the device, the driver and the versions. Ends the program where there is no device."""
    found = run_program(MACHINE)
    if not found["count"]:
        sys.exit(f"no CUDA device: nothing to measure ({found['why']})")
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    rest = {"driver": read_driver(), "python": platform.python_version(), "date": today}
    return {**found, **rest, "stand_in": "stand-in" in found["name"]}


def keep(folder: Path, page: Path | None, name: str, figures: object) -> None:
    """Keep figures in the folder, and write the page again: what measures the rest may be stopped."""
    (folder / f"{name}.json").write_text(json.dumps(figures), encoding="utf-8")
    print(f"measured: {name}", flush=True)
    why_not = "" if page is None else gpu_page.main(folder, page)
    if why_not:
        sys.exit(why_not)


def keep_machine(folder: Path) -> bool:
    """Keep which machine this is, and drop results of another one; return whether it is the stand-in."""
    machine, path = describe_machine(), folder / "machine.json"
    if path.exists():
        before = json.loads(path.read_text("utf-8"))
        differing = [name for name in SAME_MACHINE if before.get(name) != machine[name]]
        if differing:
            changes = ", ".join(f"{name} was {before.get(name)} and is {machine[name]}" for name in differing)
            print(f"{folder} has results of another machine, which are dropped: {changes}", file=sys.stderr)
            shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(machine), encoding="utf-8")
    return bool(machine["stand_in"])


def own_time(devices: int) -> Json:
    """Measure the own time of clean tests that use so many devices."""
    names = [f"cuda:{index}" for index in range(devices)] or ["cpu"]
    tests = CLEAN_TESTS if devices else SMALL_TESTS
    source = tests.replace("{devices}", repr(names)).replace("{count}", str(TESTS))
    report = run_suite(source)
    own = [(test["nodeid"].partition("::")[2].partition("[")[0], test["overhead_s"]) for test in report["tests"]]
    return {"devices": names, "tests": own, "summary": report["summary"]}


def main() -> int:
    """Measure, and keep what was measured; return the exit status: 1 where a clean test was reported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, help="the page to write with what is in the folder")
    parser.add_argument("--machine", action="store_true", help="write machine.json alone, and print its kind")
    arguments = parser.parse_args()
    stand_in = keep_machine(arguments.folder)
    if arguments.machine:
        print("stand-in" if stand_in else "device")
        return 0
    folder, page = arguments.folder, arguments.page
    keep(folder, page, "moments", run_program(MOMENTS))
    steady = run_program(NOISE)
    keep(folder, page, "noise", steady)
    suites: list[Json] = []
    for devices in range(steady["devices"] + 1):
        suites.append(own_time(devices))
        keep(folder, page, "own_times", suites)
    return 1 if any(suite["summary"]["leaked"] or suite["summary"]["noted"] for suite in suites) else 0


if __name__ == "__main__":
    sys.exit(main())

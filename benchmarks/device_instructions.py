"""What the check adds to a test that uses a CUDA device, in instructions: they do not depend on how busy the machine is.

    python benchmarks/device_instructions.py              # in the environment of scripts/test-cuda; some minutes

Each test makes a tensor on each device. One process imports torch and pytest under cachegrind (of valgrind); each run is
a child that it forks before CUDA is used. What 1 test takes is subtracted from what 501 take, so a test is left. The ways:
the plugin blocked; on, which reads the counters; with a report, for which the peaks are measured and records are kept.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MORE = 500
"""Tests by which a long run is longer than a short one."""
TESTS = """
import pytest
import torch

@pytest.mark.parametrize("number", range({count}))
def test_small(number):
    for device in {devices}:
        torch.ones(16, device=device)
"""
BLOCKED = "the plugin blocked"
WAYS = {
    BLOCKED: ["-p", "no:gpuleak"],
    "--gpu-leak": ["--gpu-leak"],
    "--gpu-leak --gpu-leak-report": ["--gpu-leak", "--gpu-leak-report=report.json"],
}


def run_child(place: Path, devices: int, count: int, options: list[str]) -> int:
    """Run so many tests in a forked child, and return its process id. Ends the program where one fails."""
    import pytest

    place.mkdir()
    names = [f"cuda:{index}" for index in range(devices)] or ["cpu"]
    (place / "test_it.py").write_text(TESTS.format(count=count, devices=names))
    others = {entry.name for entry in importlib.metadata.entry_points(group="pytest11")} - {"gpuleak"}
    blocked = [word for name in sorted(others) for word in ("-p", f"no:{name}")]
    arguments = ["-q", "-p", "no:cacheprovider", "--assert=plain", "-c", os.devnull, "--rootdir", str(place), *blocked]
    child = os.fork()
    if not child:
        os.chdir(place)
        os.dup2(os.open("output", os.O_WRONLY | os.O_CREAT), 1)
        os._exit(int(pytest.main([*arguments, *options, "test_it.py"])))
    _, status = os.waitpid(child, 0)
    if status:
        code = os.waitstatus_to_exitcode(status)
        sys.exit(
            f"pytest {' '.join(options)} failed on {devices} devices (exit status {code}):\n{(place / 'output').read_text()}"
        )
    return child


def run_all(folder: Path, most: int) -> None:
    """Run every way on no device to `most`, and print the process ids of a short and a long run of each."""
    import torch  # noqa: F401 - before the children are forked; asked for a device, it would refuse to work in them

    run_child(folder / "first", most, 1, WAYS["--gpu-leak"])  # compiles the modules
    for devices in range(most + 1):
        for number, (way, options) in enumerate(WAYS.items()):
            short, long = (
                run_child(folder / f"{devices}-{number}-{count}", devices, count, options) for count in (1, 1 + MORE)
            )
            print(f"pids {devices} {short} {long} {way}", flush=True)


def count_instructions() -> None:
    """Run this program under cachegrind, and print what a test takes, and what more than with the plugin blocked."""
    count = [sys.executable, "-c", "import torch; print(min(torch.cuda.device_count(), 2))"]
    most = subprocess.run(count, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="device-instructions-") as folder:
        valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={folder}/%p.out"]
        command = [*valgrind, sys.executable, __file__, "--inside", folder, "--most", most]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1") | {"PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        lines = re.findall(r"^pids (\d+) (\d+) (\d+) (.*)$", done.stdout, re.MULTILINE)
        if done.returncode or not lines:
            sys.exit(f"valgrind failed (exit status {done.returncode}): {done.stdout[-500:]}{done.stderr[-1000:]}")
        base = 0.0
        for devices, short, long, way in lines:
            each = (_instructions(folder, long) - _instructions(folder, short)) / MORE / 1e3
            base = each if way == BLOCKED else base
            print(f"{devices} devices, {way}: {each:.0f} thousand instructions a test, {each - base:+.0f}")


def _instructions(folder: str, pid: str) -> int:
    for line in Path(folder, f"{pid}.out").read_text("utf-8").splitlines():
        if line.startswith("summary:"):
            return int(line.split()[1])
    sys.exit(f"cachegrind wrote no summary for process {pid}")


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--most", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside is not None:
        run_all(arguments.inside, arguments.most)
    else:
        count_instructions()


if __name__ == "__main__":
    main()

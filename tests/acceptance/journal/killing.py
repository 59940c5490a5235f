"""Runs that are killed at random moments, and what each had ended by then and has left to read.

    python killing.py FOLDER COUNT SEED

The folder gets `killed-0`, `killed-1`, ... each with `report.json`, as the kill has left it, and `ended`, the tests that
had ended, one a line. Each run is forked from one process that has imported pytest already, for speed.
"""

from __future__ import annotations

import os
import pathlib
import random
import signal
import sys
import time

import pytest

CONFTEST = """
import os

ended = os.open("ended", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def pytest_runtest_logfinish(nodeid):
    os.write(ended, nodeid.encode() + b"\\n")
"""
SUITE = """
import pytest

@pytest.mark.parametrize("i", range(2000))
def test_it(i):
    pass
"""
OPTIONS = ["-q", "--gpu-leak", "--gpu-leak-report=report.json", "-p", "no:cacheprovider", "-p", "no:randomly"]
LONGEST_S = 60.0


def run_until(folder: pathlib.Path, delay_s: float) -> None:
    """Run the suite in a folder and kill it, some seconds after its first test has ended."""
    folder.mkdir()
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\n")
    child = os.fork()
    if not child:
        os.chdir(folder)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os._exit(pytest.main([*OPTIONS, "."]))
    began = time.monotonic()
    ended = folder / "ended"
    while not (ended.exists() and ended.stat().st_size):
        if time.monotonic() - began > LONGEST_S:
            os.kill(child, signal.SIGKILL)
            raise SystemExit(f"no test of {folder} has ended in {LONGEST_S} s")
        time.sleep(0.001)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"the run in {folder} was over before it was killed: {status}")


def main(root: pathlib.Path, count: int, seed: int) -> None:
    """Kill so many runs."""
    moments = random.Random(seed)
    for index in range(count):
        run_until(root / f"killed-{index}", moments.uniform(0, 0.15))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

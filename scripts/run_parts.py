"""Run the tests a few files at a time, each time in a new process, and end with one closing line for all.

    python scripts/run_parts.py                            # all tests, a part more at a time than there are cores
    python scripts/run_parts.py -m "interpreter and not slow"
    python scripts/run_parts.py --also python3.12          # and those of the interpreter on another Python

A run inside a test collects garbage and searches the heap of the process that it is in, so it takes in step with all that
this process holds: thousands of collected tests, and torch with its 140,000 objects. So a part is a few files, and the
tests that need torch are parts of their own, of the files alone that have such tests; no other part imports it. Each part's output is printed when it
has ended, and what failed once more at the end. The parts of all Pythons are run in one pool: the end of each, when few parts
are left and a core has nothing to do, would be waited for by itself. The exit status is 0 where every part passed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FILES_A_PART = 12
"""Of whole runs of pytest; of the others, three times as many. A process takes 3 s of processor time before its first test."""
LONG = (
    "tests/acceptance/holders/test_planted.py",
    "tests/acceptance/memory/test_numpy_arrays.py",
    "tests/acceptance/confirm/test_leaks_in_series.py",
    "tests/acceptance/docs/test_adding.py",
    "tests/acceptance/confirm/test_explained_together.py",
    "tests/acceptance/confirm/test_rerun_limits.py",
    "tests/acceptance/session/test_session.py",
    "tests/explain/test_many_targets.py",
)
"""Files that take 20 s of processor time and more without their tests for torch: each is a part, begun before the others."""
JOBS = (os.cpu_count() or 1) + 1
"""Parts at a time: one core's worth of them waits, for time limits and for processes that they have started."""
ON_OTHERS = "interpreter and not torch and not slow"
"""The tests that are run on other Pythons."""
ON_NEWEST = "(interpreter or newest) and not torch and not slow"
"""The tests that are run on the last of them."""
KINDS = ("failed", "passed", "skipped", "xfailed", "xpassed", "warning", "error")
"""What is counted, in pytest's order."""
WRITTEN_OUT = ("torch", "interpreter", "newest")
"""Markers that the file of a test which has one writes out, as `mark.NAME`."""
ALL_NEED_TORCH = re.compile(r"^pytestmark = (?:\[[^\]]*)?pytest\.mark\.torch\b", re.MULTILINE)
"""What a file of tests has that all need torch. It imports torch as it is collected, even where none of its tests is run."""
COMPILING = re.compile(r"torch\.optim\b|FakeTensorMode|torch\._dynamo")
"""What a file of tests has that imports torch's compiler: making an optimiser, and fake tensors."""
DRAWING = re.compile(r"^\s*(?:from|import) hypothesis\b", re.MULTILINE)
"""What a file has that draws its examples. One that only keeps its plugin out of a run names it too."""
NO_TESTS = 5
"""pytest's exit status where nothing was collected: a part may have no test for this Python."""


class Part(NamedTuple):
    """The tests of these files that match the expression, on this Python."""

    python: str
    expression: str
    files: list[str]

    @property
    def takes_long(self) -> bool:
        """Tell whether it is to be begun before the others: begun last, it would be waited for alone."""
        return self.expression == "torch" or self.files[0] in LONG

    def __str__(self) -> str:
        on = "" if self.python == sys.executable else f"{self.python}: "
        if self.expression == "torch":
            return f"{on}torch: {self.files[0]} and {len(self.files) - 1} more"
        return f"{on}{self.expression}: {' '.join(self.files)}"


def parts(python: str, marked: str) -> list[Part]:
    """The parts of a Python, what takes long first.

    A large file of tests takes longer than a small one, by and large.

    Args:
        python: the program.
        marked: the expression of markers that all tests are to match.
    """
    paths = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda path: (-path.stat().st_size, path))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    # conftest.py refuses a test that has one of these where its file does not write it out.
    needed = [name for name in WRITTEN_OUT if re.search(rf"(?<!not ){name}\b", marked)]
    files = [file for file, text in texts.items() if not needed or any(f"mark.{name}" in text for name in needed)]
    whole_runs = [file for file in files if file.startswith("tests/acceptance/")]
    others = [file for file in files if file not in whole_runs]
    found: list[tuple[str, list[str]]] = []
    if "not torch" not in marked:
        for side in (whole_runs, others):
            with_torch = [file for file in side if "mark.torch" in texts[file]]
            # What imports torch's compiler adds 120,000 objects to each search after it, and comes last.
            with_torch.sort(key=lambda file: bool(COMPILING.search(texts[file])))
            found += in_parts("torch", with_torch, 3 * FILES_A_PART)
    # Of what is chosen by a marker they have few tests: no part of their own.
    long = [] if needed else [file for file in LONG if file in files]
    found += [("not torch", [file]) for file in long]
    for side, size in ((whole_runs, FILES_A_PART), (others, 3 * FILES_A_PART)):
        short = [file for file in side if file not in long and not ALL_NEED_TORCH.search(texts[file])]
        # Files that draw their examples lie together: hypothesis too is on the heap of all tests of its process.
        found += in_parts("not torch", sorted(short, key=lambda file: bool(DRAWING.search(texts[file]))), size)
    return [Part(python, expression, files) for expression, files in found]


def in_parts(expression: str, files: list[str], size: int) -> list[tuple[str, list[str]]]:
    """The files, about `size` of them at a time, each with the expression: none is left over for a process of its own."""
    size = -(-len(files) // max(1, round(len(files) / size))) or 1
    return [(expression, files[start : start + size]) for start in range(0, len(files), size)]


def run_part(part: Part, marked: str) -> tuple[int, str]:
    """Run the tests of a part that match this expression too; return the exit status and what it printed."""
    expression = f"({marked}) and {part.expression}" if marked else part.expression
    command = [part.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", expression, *part.files]
    if not any(DRAWING.search((ROOT / file).read_text("utf-8")) for file in part.files):
        command += ["-p", "no:hypothesispytest"]  # at the end of each run it imports hypothesis, for half a second
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def counts(output: str) -> Counter[str]:
    """How many tests passed, failed and so on, by a part's last line."""
    last = output.rstrip().rpartition("\n")[2]
    found = re.findall(rf"(\d+) ({'|'.join(KINDS)})s?\b", last)
    return Counter({kind: int(number) for number, kind in found})


def closing_line(total: Counter[str], seconds: float) -> str:
    """The line that pytest would have ended with."""
    words = []
    for kind in KINDS:
        number = total[kind]
        plural = "s" if kind in ("warning", "error") and number != 1 else ""
        words += [f"{number} {kind}{plural}"] if number else []
    return f" {', '.join(words) or 'no tests ran'} in {seconds:.2f}s ({int(seconds) // 60} min) ".center(100, "=")


def main() -> int:
    """Run all parts, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", dest="marked", default="", help="run the tests that match this expression of markers")
    parser.add_argument("--also", action="append", default=[], metavar="PYTHON",
                        help="run the interpreter's tests on this Python too; may be given again, the newest last")  # fmt: skip
    parser.add_argument("-j", dest="jobs", type=int, default=JOBS, help=f"run so many parts at a time ({JOBS})")
    options = parser.parse_args()
    began = time.monotonic()
    totals: dict[str, Counter[str]] = {python: Counter() for python in (*options.also, sys.executable)}
    failed: list[str] = []
    wanted = dict.fromkeys(options.also, ON_OTHERS) | dict.fromkeys(options.also[-1:], ON_NEWEST)
    wanted[sys.executable] = options.marked
    found = [part for python in reversed(totals) for part in parts(python, wanted[python])]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {
            pool.submit(run_part, part, wanted[part.python]): part
            for part in sorted(found, key=lambda part: not part.takes_long)
        }
        for ended in concurrent.futures.as_completed(running):
            part, (status, output) = running[ended], ended.result()
            counted = counts(output)
            if status == NO_TESTS and not counted:
                continue
            print(f"gpuleak: {part}\n{output}", end="", flush=True)
            totals[part.python] += counted
            if status not in (0, NO_TESTS):
                lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
                on = "" if part.python == sys.executable else f"{part.python}: "
                failed += [f"{on}{line}" for line in lines] or [f"ended with exit status {status}: {part}"]
    for line in failed:
        print(line)
    for python, total in totals.items():
        if python != sys.executable:
            print(f"gpuleak: {python}")
        print(closing_line(total, time.monotonic() - began))
    return 1 if failed or not all(totals.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

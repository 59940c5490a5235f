"""Run the tests a few files at a time, each time in a new process, and end with one closing line for all.

    python scripts/run_parts.py                            # all tests, a part more at a time than there are cores
    python scripts/run_parts.py -m "interpreter and not slow"

A run inside a test collects garbage and searches the heap of the process that it is in, so it takes in step with all that
this process holds: thousands of collected tests, and torch with its 140,000 objects. So a part is a few files, and the
tests that need torch are parts of their own, of the files alone that have such tests. Each part's output is printed when it
has ended, and what failed once more at the end. The exit status is 0 where every part passed.
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

ROOT = Path(__file__).resolve().parent.parent
FILES_A_PART = 4
"""Of whole runs of pytest; of the others, which are quicker than a process starts, three times as many."""
LONG = (
    "tests/reports/test_extremes.py",
    "tests/acceptance/memory/test_numpy_arrays.py",
    "tests/acceptance/confirm/test_repeated_culprits.py",
    "tests/acceptance/confirm/test_notes.py",
    "tests/acceptance/docs/test_adding.py",
    "tests/acceptance/confirm/test_explained_together.py",
    "tests/acceptance/confirm/test_rerun_limits.py",
    "tests/acceptance/session/test_session.py",
    "tests/acceptance/confirm/test_parameters.py",
    "tests/explain/test_culprits_random.py",
    "tests/explain/test_many_targets.py",
)
"""Files that take 20 s of processor time and more without their tests for torch: each is a part, begun before the others."""
JOBS = (os.cpu_count() or 1) + 1
"""Parts at a time: one core's worth of them waits, for time limits and for processes that they have started."""
KINDS = ("failed", "passed", "skipped", "xfailed", "xpassed", "warning", "error")
"""What is counted, in pytest's order."""
WRITTEN_OUT = ("torch", "interpreter")
"""Markers that the file of a test which has one writes out, as `mark.NAME`."""
COMPILING = re.compile(r"torch\.optim\b|FakeTensorMode")
"""What a file of tests has that imports torch's compiler: making an optimiser, and fake tensors."""
NO_TESTS = 5
"""pytest's exit status where nothing was collected: a part may have no test for this Python."""


def parts(marked: str) -> list[tuple[str, list[str]]]:
    """The expression and the files of each part, what takes long first: begun last, it would be waited for alone.

    A large file of tests takes longer than a small one, by and large.

    Args:
        marked: the expression of markers that all tests are to match.
    """
    paths = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda path: (-path.stat().st_size, path))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    # conftest.py refuses a test that has one of these where its file does not write it out.
    needed = [name for name in WRITTEN_OUT if re.search(rf"(?<!not ){name}\b", marked)]
    files = [file for file, text in texts.items() if all(f"mark.{name}" in text for name in needed)]
    whole_runs = [file for file in files if file.startswith("tests/acceptance/")]
    others = [file for file in files if file not in whole_runs]
    found: list[tuple[str, list[str]]] = []
    if "not torch" not in marked:
        for side in (whole_runs, others):
            with_torch = [file for file in side if "mark.torch" in texts[file]]
            # What imports torch's compiler adds 120,000 objects to each search after it, and comes last.
            found.append(("torch", sorted(with_torch, key=lambda file: bool(COMPILING.search(texts[file])))))
    found += [("not torch", [file]) for file in LONG if file in files]
    for side, size in ((whole_runs, FILES_A_PART), (others, 3 * FILES_A_PART)):
        short = [file for file in side if file not in LONG]
        found += [("not torch", short[start : start + size]) for start in range(0, len(short), size)]
    return [(expression, files) for expression, files in found if files]


def run_part(expression: str, paths: list[str]) -> tuple[int, str]:
    """Run a part; return the exit status and what it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", expression, *paths]
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
    parser.add_argument("-j", dest="jobs", type=int, default=JOBS, help=f"run so many parts at a time ({JOBS})")
    options = parser.parse_args()
    began = time.monotonic()
    total: Counter[str] = Counter()
    failed: list[str] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {}
        for expression, paths in parts(options.marked):
            marked = f"({options.marked}) and {expression}" if options.marked else expression
            files = f"{paths[0]} and {len(paths) - 1} more" if expression == "torch" else " ".join(paths)
            running[pool.submit(run_part, marked, paths)] = f"{expression}: {files}"
        for ended in concurrent.futures.as_completed(running):
            status, output = ended.result()
            found = counts(output)
            if status == NO_TESTS and not found:
                continue
            print(f"gpuleak: {running[ended]}\n{output}", end="", flush=True)
            total += found
            if status not in (0, NO_TESTS):
                lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
                failed += lines or [f"ended with exit status {status}: {running[ended]}"]
    for line in failed:
        print(line)
    print(closing_line(total, time.monotonic() - began))
    return 1 if failed or not total else 0


if __name__ == "__main__":
    sys.exit(main())

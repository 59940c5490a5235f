"""Runs random suites without and with the plugin, and tells what differs and what is said wrongly of planted leaks.

    python benchmarks/soak.py --minutes 60                  # a fresh seed, printed first
    python benchmarks/soak.py --seed 4711 --suites 1-20     # certain suites of a seed again
    python benchmarks/soak.py --minutes 10 --keep found     # the files of each failing suite, smaller where that goes

Each suite is made from the seed and its number: fixtures of all scopes, parametrized, async, TestCase, threads,
processes, failures, skips, timeouts, other plugins, and leaks that are planted or not. Both ways it runs in processes of
its own with a limit. Compared are outcomes, order, captured output, exit status, files and the random numbers drawn, and
each test's verdict with what was planted. Prints one line a difference, then a summary line; the exit status is 1 where
anything differs. tests/soak has the parts.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.soak.comparing import Difference, compare
from tests.soak.running import run_suite
from tests.soak.shrinking import shrink
from tests.soak.suites import draw_suite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.soak.suites import Suite


@dataclasses.dataclass
class Soak:
    """One soak: how many suites and tests were run, and what was found.

    Args:
        seed: of the suites.
        keep: the folder that gets the failing suites' files.
        shrinks: whether a failing suite is made smaller, which takes up to 40 more runs of it.
    """

    seed: int
    keep: Path
    shrinks: bool
    suites: int = 0
    tests: int = 0
    found: int = 0

    def run(self, number: int) -> None:
        """Run a suite of the seed; tell what differs."""
        name = f"{self.seed}-{number}"
        suite = draw_suite(name)
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            differences = self._differences(suite, Path(folder) / "run")
            self.suites += 1
            self.tests += len(suite.expected())
            if not differences:
                return
            for difference in differences:
                print(f"suite {name}: {difference}", flush=True)
            self.found += len(differences)
            target = self.keep / name
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(Path(folder) / "run", target, symlinks=True, ignore_dangling_symlinks=True)
            (target / "differences.txt").write_text("".join(f"{difference}\n" for difference in differences))
            print(f"suite {name}: its files are in {target}; run it again with --seed {self.seed} --suites {number}")
        if self.shrinks:
            self._shrink(suite, {difference.kind for difference in differences}, target)

    def _shrink(self, suite: Suite, kinds: set[str], target: Path) -> None:
        def shows(candidate: Suite) -> bool:
            with tempfile.TemporaryDirectory(prefix="soak-") as folder:
                return any(one.kind in kinds for one in self._differences(candidate, Path(folder) / "run"))

        smaller = shrink(suite, shows)
        differences = self._differences(smaller, target / "smaller")
        text = "".join(f"{difference}\n" for difference in differences)
        (target / "smaller" / "differences.txt").write_text(text)
        count = len(smaller.pieces)
        print(
            f"suite {suite.seed}: made smaller, {count} of {len(suite.pieces)} parts: {target / 'smaller'}", flush=True
        )

    def _differences(self, suite: Suite, folder: Path) -> list[Difference]:
        without, with_it = run_suite(suite, folder)
        return compare(suite, without, with_it)


def numbers_of(text: str | None) -> Iterator[int]:
    """The numbers of the suites to run: without end, so many (``20``), or certain ones (``5-9``)."""
    first, dash, last = (text or "").partition("-")
    number, end = (int(first), int(last)) if dash else (1, int(first)) if first else (1, sys.maxsize)
    while number <= end:
        yield number
        number += 1


def main() -> int:
    """Soak. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="how long; without it and --suites: 3")
    parser.add_argument("--seed", type=int, help="of the suites; without it a fresh one")
    parser.add_argument("--suites", metavar="N or N-M", help="so many suites, or those with these numbers")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="what gets the failing suites' files (default: soak-SEED)"
    )
    parser.add_argument("--no-shrink", action="store_true", help="keep failing suites as they were drawn")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    print(f"soak: seed {seed}", flush=True)
    minutes = given.minutes if given.minutes is not None or given.suites else 3
    soak = Soak(seed, given.keep or Path(f"soak-{seed}"), not given.no_shrink)
    began = time.monotonic()
    for number in numbers_of(given.suites):
        if minutes is not None and time.monotonic() - began >= 60 * minutes:
            break
        soak.run(number)
    taken = (time.monotonic() - began) / 60
    print(f"soak: seed {seed}: {soak.suites} suites, {soak.tests} tests, {taken:.1f} minutes: {soak.found} differences")
    return 1 if soak.found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Ends runs in many ways at random moments: is a readable report left, with every test that had ended?

    python benchmarks/kills.py --count 200            # a fresh seed, printed first
    python benchmarks/kills.py --count 20 --way SIGINT --seed 5 --keep kept

kill -9, SIGINT, SIGTERM, a disk that is full, a folder that becomes read-only or goes, an output that is closed or whose
reader is gone, `os._exit`, a stack overflow, a segmentation fault, a worker of xdist's that is killed. Some ways need
root, to mount a small file system, and are left out without. Prints one line a fault and a summary line a way; the exit
status is 1 where there is a fault. tests/acceptance/journal/ends.py has the ways.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.acceptance.journal.ends import MOUNTS, WAYS, End, can_mount, end_runs


def main() -> int:
    """End runs. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="runs, over all ways")
    parser.add_argument("--seed", type=int, help="of the moments; without it a fresh one")
    parser.add_argument("--way", action="append", choices=WAYS, help="this way alone; repeatable")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="what gets the folders of runs with a fault")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    print(f"kills: seed {seed}", flush=True)
    counts: collections.Counter[str] = collections.Counter()
    faults: collections.Counter[str] = collections.Counter()
    ended: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        ways = tuple(given.way or WAYS)
        if not can_mount(folder / "mount"):
            ways = tuple(way for way in ways if way not in MOUNTS)
            print("kills: nothing can be mounted here: without " + ", ".join(MOUNTS))

        def tell(end: End, number: int) -> None:
            counts[end.way] += 1
            faults[end.way] += bool(end.faults)
            ended[end.way] += end.ended
            for fault in end.faults:
                print(f"run {number}, {end.way}, after {end.ended} tests: {fault}", flush=True)
            if end.faults and given.keep:
                shutil.copytree(folder / f"run-{number}", given.keep / f"run-{number}", dirs_exist_ok=True)
            shutil.rmtree(folder / f"run-{number}")

        end_runs(folder, ways, given.count, seed, tell)
    for way, count in counts.items():
        print(f"{way}: {count} runs, {ended[way] / count:.0f} tests ended in each, {faults[way]} runs with a fault")
    print(f"kills: seed {seed}: {sum(counts.values())} runs ended, {sum(faults.values())} with a fault")
    return 1 if sum(faults.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

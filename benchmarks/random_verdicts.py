"""Does a verdict depend on the clock, the order, -v, a report or on other tests? It must not.

    python benchmarks/random_verdicts.py --seeds 10                      # suites of 24 kinds each, in all modes but `alone`
    python benchmarks/random_verdicts.py --kinds all --modes default,alone
    python benchmarks/random_verdicts.py --kinds ordered                 # those that rest on the order of their tests
    python benchmarks/random_verdicts.py --kinds 'losses,queue emptied'  # these kinds as one suite

The kinds are in tests/planted, the modes in tests/verdicts. Prints what is wrong, what differs between modes, and a summary line. The exit
status is 0 where every verdict is right in every mode.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.planted.table import KINDS
from tests.verdicts.modes import IN_ORDER, MAY_END_FIXTURES, OPTIONS, faults, run_mode
from tests.verdicts.suites import Suite, draw_suite, suite_of

AT_ONCE = 40
"""Kinds in one suite where all are asked for."""


class Tally:
    """What all runs said: how many verdicts, which are wrong and which differ."""

    def __init__(self) -> None:
        self.verdicts, self.differ, self.wrong = 0, 0, Counter[str]()

    def run(self, suite: Suite, modes: list[str], seed: int) -> None:
        """Run a suite in modes, and print what is wrong."""
        said: dict[str, dict[str, str]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for mode in modes:
                if suite.ordered and mode not in IN_ORDER:
                    continue
                found = run_mode(suite, Path(folder), mode, seed)
                if found.trouble:
                    print(f"{suite.name} {mode}: no verdicts: {found.trouble}", flush=True)
                    self.wrong[mode] += 1
                self.verdicts += len(found.tests)
                for name, fault in faults(suite, mode, found).items():
                    self.wrong[mode] += 1
                    print(f"{suite.name} {mode}: {name}: {fault}", flush=True)
                for test, verdict in found.tests.items():
                    if "crowd" not in test and not (mode in MAY_END_FIXTURES and "grows" in test):
                        said.setdefault(test, {})[mode] = "passes" if verdict == "noted" else verdict
        for test, by_mode in said.items():
            if len(set(by_mode.values())) > 1:
                self.differ += 1
                print(f"{suite.name}: {test} differs: {by_mode}: {suite.kind_of(test)}", flush=True)


def main() -> None:
    """Judge suites in several modes, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="random suites (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--tests", type=int, default=24, help="kinds in each (%(default)s)")
    parser.add_argument("--modes", default=",".join(mode for mode in OPTIONS if mode != "alone"), help="%(default)s")
    parser.add_argument("--kinds", help="instead of random suites: all, ordered, or names of kinds, with commas")
    options = parser.parse_args()
    if options.kinds:
        chosen = options.kinds.split(",")
        if options.kinds in ("all", "ordered"):
            ordered = options.kinds == "ordered"
            chosen = [name for name, kind in KINDS.items() if kind.ordered == ordered and not kind.apart]
        parts = [chosen[start : start + AT_ONCE] for start in range(0, len(chosen), AT_ONCE)]
        suites = [(suite_of("kinds", [KINDS[name] for name in part]), options.first) for part in parts]
    else:
        suites = [
            (draw_suite(seed, options.tests), seed) for seed in range(options.first, options.first + options.seeds)
        ]
    tally = Tally()
    for suite, seed in suites:
        tally.run(suite, options.modes.split(","), seed)
    wrong = tally.wrong.total()
    print(
        f"{tally.verdicts} verdicts, wrong {wrong} {dict(tally.wrong)}, tests whose verdict differs between modes {tally.differ}"
    )
    raise SystemExit(bool(wrong or tally.differ))


if __name__ == "__main__":
    main()

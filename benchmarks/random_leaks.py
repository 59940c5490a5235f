"""Random tests of which is known whether they leak, and which globals grow: each is to be judged so, and to name these.

    python benchmarks/random_leaks.py --seeds 10             # 60 tests each, with arrays of the tests' stand-in
    python benchmarks/random_leaks.py --seeds 3 --torch      # the same with tensors

Each test does what one to five of the kinds of tests/planted/held_by_python.py do, each in a function: it leaks if one of them
does. Arrays alike are likely: by their form alone what leaks and what is garbage, replaced or filled once cannot be told apart.
In half of the tests what leaks is also where the next run replaces it: as the latest of a fixture or of a global. What grows
is to be found under the global that grows, whatever is nearer. What stays in these has a size of its own, and in all tests
what lets go of older arrays: which of two alike has grown could not be told. The exit status is 0 where all is right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import string
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.conftest import STAND_IN
from tests.planted import held_by_python
from tests.planted.kind import HELPERS, STANDARD

ROOT = Path(__file__).resolve().parent.parent
SIZES = (16, 24, 32, 300, 300, 300, 5000)
BY_TURNS = ("kept in each second run from the first on", "kept in each second run from the second on", "toggled")
"""Kinds that pass since no two runs in a row add: beside what has the test run again, they would not."""
NAMELESS = ("exit functions", "finalizers of a global")
"""Kinds whose holder is no global of the test's own."""
KINDS = [kind for kind in held_by_python.KINDS if kind.parts[1] and kind.name not in (*BY_TURNS, *NAMELESS)]
LATEST = ("service.current", "LATEST.current", "service.current = LATEST.current")
"""Where what leaks is put first."""
LATEST_USERS = """
class User:
    def __init__(self, array):
        self.array = array

LATEST = Node(current=None)

@pytest.fixture(scope="module")
def service():
    return Node(current=None)

"""


def write_suite(seed: int, count: int, *, torch: bool) -> tuple[str, dict[str, set[str]]]:
    """Return a file of `count` tests, and by the name of each the numbers of what grows in it."""
    choose = random.Random(seed)
    make = "torch.ones({})" if torch else "Buffer({})"
    imports = "import torch" if torch else "from tests.support.standin import Buffer"
    lines = [STANDARD, imports, HELPERS, LATEST_USERS]
    grows: dict[str, set[str]] = {}
    for number in range(count):
        test, body, latest = f"test_{number}", [], choose.choice((*LATEST, "", "", ""))
        grows[test] = set()
        for place in range(choose.randint(1, 5)):
            kind, size, own = choose.choice(KINDS), choose.choice(SIZES), f"{number}_{place}"
            alone = not kind.leaks and (latest or "$array" in kind.parts[0])
            array = make.format(size + 1 if alone else size)
            if kind.leaks:
                grows[test].add(own)
            put = latest and kind.leaks and kind.parts[1].count("$array") == 1
            lines.append(string.Template(kind.parts[0]).substitute(n=own, array=array))
            done = string.Template(kind.parts[1]).substitute(n=own, array="used" if put else array).splitlines()
            done = [f"used = {latest} = User({array})", *done, "del used"] if put else done
            body += ["    def part():", *(f"        {line}" for line in done), "    part()"]
        lines += [f"def {test}(service, store):", *body]
    # The module's fixture outlives every test but the last.
    return "\n".join([*lines, "def test_last(service):", "    pass", ""]), grows


def run_pytest(folder: Path, *options: str) -> Any:
    """Run the suite in a folder with the plugin; return its report."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-W", "ignore"]
    done = subprocess.run(
        [*pytest, "--gpu-leak", "--gpu-leak-report=report.json", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if not (folder / "report.json").is_file():
        raise SystemExit(done.stdout + done.stderr)
    return json.loads((folder / "report.json").read_text())


def named(test: Any) -> set[str]:
    """Return the numbers of the globals that a test's findings name as growing."""
    texts = [str((found["holder"] or {}).get("text")) for found in test["findings"] if found["bytes_per_run"]]
    return {number for text in texts for number in re.findall(r"(?<=[A-Za-z])\d+_\d+\b", text)}


def main() -> None:
    """Judge suites of several seeds, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="suites (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--tests", type=int, default=60, help="tests of each (%(default)s)")
    parser.add_argument("--torch", action="store_true", help="make tensors")
    options = parser.parse_args()
    judged = wrong = 0
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            suite, grows = write_suite(seed, options.tests, torch=options.torch)
            (folder / "pytest.ini").write_text("[pytest]\n")
            (folder / "test_it.py").write_text(suite)
            if not options.torch:
                (folder / "conftest.py").write_text(textwrap.dedent(STAND_IN))
            for test in run_pytest(folder)["tests"][:-1]:
                judged += 1
                function = test["nodeid"].rpartition("::")[2]
                said, right = named(test), grows[function]
                if (test["verdict"] == "leaked") != bool(right) or said != right:
                    wrong += 1
                    print(f"seed {seed}: {function} is {test['verdict']}, names {sorted(said)}, {sorted(right)} grow")
    print(f"{judged} tests, {wrong} judged wrong or with a wrong holder")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()

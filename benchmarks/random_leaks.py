"""Random tests of which is known whether they leak: each is to be judged so, with and without notes.

    python benchmarks/random_leaks.py --seeds 10             # 60 tests each, with arrays of the tests' stand-in
    python benchmarks/random_leaks.py --seeds 3 --torch      # the same with tensors

Each test does one to five things in a random order: it keeps an array in a list, a dict or a cycle of a global (these leak),
leaves garbage in a cycle of its own or with an older object, collects garbage, replaces what a global holds, also by another
size or in a cycle, fills a cache once, or fills what the next test's setup empties. Arrays alike are likely: by their form
alone what leaks and what is garbage, replaced or filled once cannot be told apart. Not among them are bounded caches, which
grow until they are full. The exit status is 0 where every verdict is right.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.conftest import STAND_IN

ROOT = Path(__file__).resolve().parent.parent
SIZES = (16, 24, 32, 300, 300, 300, 5000)
LEAKS = {
    "list": ("{name} = []", "{name}.append({array})"),
    "dict": ("{name} = {{}}", "{name}[len({name})] = [{array}]"),
    "cycle": ("{name} = []", "{name}.append(cycle({array}))"),
}
"""Ways to leak: the global, and the line of the test."""
CLEAN = {
    "young garbage": ("", "cycle({array})"),
    "garbage with an older object": ("", "leave({array})"),
    "garbage with another": ("", "leave({array})"),
    "collection": ("", "gc.collect()"),
    "another collection": ("", "gc.collect()"),
    "young collection": ("", "gc.collect(0)"),
    "replaced": ("{name} = {{}}", "{name}['x'] = {array}"),
    "replaced in a cycle": ("{name} = {{}}", "{name}['x'] = cycle({array})"),
    "replaced by another size": ("{name} = {{}}", "{name}['n'] = {name}.get('n', 0) + 1; {name}['x'] = {growing}"),
    "filled once": ("{name} = []", "{name} or {name}.append({array})"),
    "emptied by the next setup": ("", "STORE[{place}] = {array}"),
    "local": ("", "x = {array}; del x"),
}
"""What leaks nothing, in the same form."""
HEAD = """
import gc, types, pytest
{imports}
STORE, OLDER = {{}}, [types.SimpleNamespace() for _ in range(5000)]

def cycle(array):
    node = types.SimpleNamespace(array=array)
    node.itself = node
    return node

def leave(array):
    older = OLDER.pop()
    older.itself, older.array = older, array

@pytest.fixture(autouse=True)
def emptied():
    STORE.clear()
"""


def write_suite(seed: int, count: int, *, torch: bool) -> str:
    """Return a file of `count` tests; the name of each ends with its verdict."""
    choose = random.Random(seed)
    lines = [HEAD.format(imports="import torch" if torch else "from tests.support.standin import Buffer")]
    array = "torch.ones({})" if torch else "Buffer({})"
    for number in range(count):
        body, leaks = [], False
        for place in range(choose.randint(1, 5)):
            size, name = choose.choice(SIZES), f"G{number}_{place}"
            kind = choose.choice([*LEAKS, *CLEAN])
            leaks |= kind in LEAKS
            values = {
                "name": name,
                "place": place,
                "array": array.format(size),
                "growing": array.format(f"{size} + {name}['n']"),
            }
            made, line = (text.format(**values) for text in {**LEAKS, **CLEAN}[kind])
            lines += [made] if made else []
            body.append(line)
        choose.shuffle(body)
        lines.append(f"def test_{number}_{'leaked' if leaks else 'clean'}():")
        lines += [f"    {line}" for line in body]
    return "\n".join(lines)


def read_options(description: str | None, tests: int) -> argparse.Namespace:
    """Return the options of a run over random suites of so many `tests` each."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="suites (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--tests", type=int, default=tests, help="tests of each (%(default)s)")
    parser.add_argument("--torch", action="store_true", help="make tensors")
    return parser.parse_args()


def place_suite(folder: Path, suite: str, *, torch: bool) -> None:
    """Write the suite into a folder."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(suite)
    if not torch:
        (folder / "conftest.py").write_text(textwrap.dedent(STAND_IN))


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the suite in a folder with the plugin."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-W", "ignore"]
    return subprocess.run(
        [*pytest, "--gpu-leak", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def judge(folder: Path, *options: str) -> dict[str, str]:
    """Run the suite, and return `leaked` or `clean` by the name of the test."""
    done = run_pytest(folder, "--junitxml=j.xml", *options)
    if not (folder / "j.xml").is_file():
        raise SystemExit(done.stdout + done.stderr)
    verdicts: dict[str, str] = {}
    for case in ElementTree.parse(folder / "j.xml").iter("testcase"):
        failed = any(child.tag in ("failure", "error") for child in case)
        name = str(case.get("name"))
        verdicts[name] = "leaked" if failed else verdicts.get(name, "clean")
    return verdicts


def main() -> None:
    """Judge suites of several seeds, and print what is wrong."""
    options = read_options(__doc__, 60)
    judged = wrong = 0
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            place_suite(folder, write_suite(seed, options.tests, torch=options.torch), torch=options.torch)
            for notes in ([], ["-v"]):
                for test, verdict in judge(folder, *notes).items():
                    judged += 1
                    if not test.endswith(verdict):
                        wrong += 1
                        print(f"seed {seed} {' '.join(notes)}: {test} is judged {verdict}", flush=True)
    print(f"{judged} verdicts, {wrong} wrong")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()

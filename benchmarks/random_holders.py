"""Random tests of which is known which globals grow: each finding is to name one of them, and each is to be named.

    python benchmarks/random_holders.py --seeds 10             # 40 tests each, with arrays of the tests' stand-in
    python benchmarks/random_holders.py --seeds 3 --torch      # the same with tensors

Each test does one to four things in a random order. Some keep an object with an array where it stays, near a global or far
below it, some of these also where the next run replaces it: as the latest user of a fixture or of a global. The others only
replace, fill once, or leave garbage. What grows is to be found under the global that grows, whatever is nearer. What is
filled once has a size of its own: beside an array alike whose nearest holder is its latest user, either might have grown.
The exit status is 0 where every holder is right.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.random_leaks import SIZES, place_suite, read_options, run_pytest

GROWS = {
    "list": ("{name} = []", "{name}.append({user})"),
    "dict": ("{name} = {{}}", "{name}[len({name})] = [{user}]"),
    "far below": ("{name} = []", "{name}.append({{'a': {{'b': {{'c': {user}}}}}}})"),
    "attributes": ("{name} = Node(part=Node(items=[]))", "{name}.part.items.append({user})"),
    "cycle": ("{name} = []", "{name}.append(cycle({user}))"),
    "class": ("class {name}:\n    kept = []", "{name}.kept.append(({user},))"),
    "closure": ("{name} = []", "{name}.append(closing_over({user}))"),
    "default": ("def {name}(into=[]):\n    return into", "{name}().append({user})"),
    "fixture": ("", "service.items.append({user})"),
    "chain": ("{name} = Node(before=None)", "{name}.before = Node(user={user}, before={name}.before)"),
}
"""Ways to grow: what the module defines, and the line of the test. `{user}` is an object with an array."""
STAYS = {
    "garbage": ("", "cycle({user})"),
    "replaced": ("{name} = {{}}", "{name}['x'] = {user}"),
    "replaced far below": ("{name} = Node(part=Node(last=None))", "{name}.part.last = {{'a': {user}}}"),
    "filled once": ("{name} = []", "{name} or {name}.append({user})"),
    "latest of the fixture": ("", "service.current = {user}"),
    "latest of a global": ("{name} = Node(current=None)", "{name}.current = {user}"),
    "local": ("", "x = {user}; del x"),
}
"""What does not grow, in the same form."""
LATEST = ("", "", "service.current = ", "LATEST.current = ", "service.current = LATEST.current = ")
"""Where the user that a test keeps is put first."""
HEAD = """
import pytest
{imports}

class Node:
    def __init__(self, **values):
        self.__dict__.update(values)

class User:
    def __init__(self, array):
        self.array = array

def cycle(user):
    node = Node(user=user)
    node.itself = node
    return node

def closing_over(user):
    return lambda: user

LATEST = Node(current=None)

@pytest.fixture(scope="module")
def service():
    return Node(current=None, items=[])

"""


def write_suite(seed: int, count: int, *, torch: bool) -> tuple[str, dict[str, set[str]]]:
    """Return a file of `count` tests, and by the name of each the globals that grow."""
    choose = random.Random(seed)
    lines = [HEAD.format(imports="import torch" if torch else "from tests.support.standin import Buffer")]
    array = "torch.ones({})" if torch else "Buffer({})"
    grown: dict[str, set[str]] = {}
    for number in range(count):
        test, body = f"test_{number}", []
        grown[test] = set()
        for place in range(choose.randint(1, 4)):
            name = f"G{number}_{place}"
            kind = choose.choice([*GROWS, *STAYS])
            size = choose.choice(SIZES)
            user = f"User({array.format(size + 1 if kind == 'filled once' else size)})"
            steps = []
            if kind in GROWS:
                grown[test].add("fixture 'service'" if kind == "fixture" else name)
                steps.append(f"user = {choose.choice(LATEST)}{user}")
                user = "user"
            made, line = (text.format(name=name, user=user) for text in {**GROWS, **STAYS}[kind])
            lines += [made] if made else []
            body.append([*steps, line, *(["del user"] if steps else [])])
        choose.shuffle(body)
        lines.append(f"def {test}(service):")
        lines += [f"    {line}" for steps in body for line in steps]
    # The module's fixture outlives every test but the last.
    return "\n".join([*lines, "def test_last(service):", "    pass"]), grown | {"test_last": set()}


def named(report: Any) -> dict[str, set[str]]:
    """Return by the name of each test the globals that its findings name as growing."""
    found: dict[str, set[str]] = {}
    for test in report["tests"]:
        roots = found.setdefault(test["nodeid"].rpartition("::")[2], set())
        for finding in test["findings"]:
            if finding["bytes_per_run"]:
                root = str((finding["holder"] or {}).get("root"))
                parts = root.split(".")
                roots.add(parts[1] if parts[0] == "test_it" and len(parts) > 1 else root)
    return found


def main() -> None:
    """Judge suites of several seeds, and print what is wrong."""
    options = read_options(__doc__, 40)
    judged = wrong = 0
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            suite, grown = write_suite(seed, options.tests, torch=options.torch)
            place_suite(folder, suite, torch=options.torch)
            done = run_pytest(folder, "--gpu-leak-report=report.json")
            if not (folder / "report.json").is_file():
                raise SystemExit(done.stdout + done.stderr)
            for test, roots in named(json.loads((folder / "report.json").read_text())).items():
                judged += 1
                if roots != grown[test]:
                    wrong += 1
                    print(f"seed {seed}: {test} names {sorted(roots)}, {sorted(grown[test])} grow", flush=True)
    print(f"{judged} tests, {wrong} with a wrong holder")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()

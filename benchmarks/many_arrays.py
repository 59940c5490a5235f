"""What a test costs that leaves very many tensors behind: in a list, in a chain and in a tree.

    python benchmarks/many_arrays.py             # 100,000 tensors, then a tenth of them
    python benchmarks/many_arrays.py --count 5000

Each shape runs without the plugin and with `--gpu-leak`, which runs the test again and names who holds the tensors.
Prints CPU seconds of the whole process, torch's import included, and the finding.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

SOURCE = """
import torch

HELD = []

class Node:
    def __init__(self, value):
        self.value, self.below = value, []

def test_list():
    HELD.append([torch.ones(2) for _ in range({count})])

def test_chain():
    head = None
    for _ in range({count}):
        node = Node(torch.ones(2))
        node.below.append(head)
        head = node
    HELD.append(head)

def test_tree():
    nodes = [Node(torch.ones(2)) for _ in range({count})]
    for index in range(1, {count}):
        nodes[(index - 1) // 10].below.append(nodes[index])
    HELD.append(nodes[0])
"""


def run(folder: pathlib.Path, test: str, *options: str) -> tuple[float, str]:
    """Run one test by pytest: CPU seconds, and the line of the summary that names the finding."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, f"test_many.py::{test}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "CI": "true"}, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [line.strip() for line in done.stdout.splitlines() if "each run leaves" in line or "held by" in line]
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "; ".join(lines)


def main() -> None:
    """Print one line for each shape and number."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, help="tensors; without it 100,000 and 10,000")
    wanted = parser.parse_args().count
    for count in [100_000, 10_000] if wanted is None else [wanted]:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "test_many.py").write_text(SOURCE.format(count=count), "utf-8")
            for test in ("test_list", "test_chain", "test_tree"):
                plain, _ = run(folder, test, "-p", "no:gpuleak")
                checked, found = run(folder, test, "--gpu-leak")
                print(f"{count} {test}: {plain:.1f} s without, {checked:.1f} s with; {found}", flush=True)


if __name__ == "__main__":
    main()

"""What suspects cost that are no leak, and leaks that are many: CPU seconds of whole runs without and with the plugin.

    python benchmarks/suspects.py [NAME ...] [--rounds 3] [--beside CHECKOUT]

Each suite runs without the plugin and with ``--gpu-leak``, in turns; the medians are printed. ``--beside`` runs each with
another checkout of the plugin too. The names are those of `SUITES`.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

AUGMENTATIONS = """
import os, pytest, torch
HEAP = [[i] for i in range({heap})]

class Augmentation:
    def __call__(self):
        self.last = torch.ones({numbers})

@pytest.mark.parametrize("augmentation", [Augmentation() for _ in range({tests})])
def test_it(augmentation):
    augmentation()
"""

INSTANCES = """
import unittest, torch

class TestIt({base}):
    pass

def body(self):
    self.value = torch.ones(8)

for i in range(300):
    setattr(TestIt, f"test_{{i}}", lambda self: body(self))
"""

INSTALLED = """
import pathlib, sys, pytest, torch
folder = pathlib.Path("site-packages", "library")
folder.mkdir(parents=True)
(folder / "__init__.py").write_text("")
for number in range({tests}):
    (folder / f"store{{number}}.py").write_text("kept = []\\n")
sys.path.insert(0, str(folder.parent.resolve()))
stores = [__import__(f"library.store{{number}}", fromlist=["kept"]) for number in range({tests})]

@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    stores[number].kept.append(torch.ones(1024))
"""

SUITES = {
    "20 small notes": AUGMENTATIONS.format(heap=0, numbers=10, tests=20),
    "20 small notes, a million lists": AUGMENTATIONS.format(heap=1_000_000, numbers=10, tests=20),
    "141 objects that keep 3 KiB": AUGMENTATIONS.format(heap=0, numbers=768, tests=141),
    "300 instances of a TestCase": INSTANCES.format(base="unittest.TestCase"),
    "300 instances of a class": INSTANCES.format(base=""),
    "500 leaks into one list": """
import pytest, torch
HISTORY = []

@pytest.mark.parametrize("number", range(500))
def test_it(number):
    HISTORY.append(torch.ones(1024))
""",
    "500 leaks into 500 globals": """
import pytest, torch
globals().update({f"HISTORY_{i}": [] for i in range(500)})

@pytest.mark.parametrize("number", range(500))
def test_it(number):
    globals()[f"HISTORY_{number}"].append(torch.ones(1024))
""",
    "120 leaks into installed modules": INSTALLED.format(tests=120),
    "100 suspects under a session's fixture": """
import pytest, torch

@pytest.fixture(scope="session")
def model():
    return {}

@pytest.mark.parametrize("number", range(100))
def test_it(model, number):
    model[number] = torch.ones(10)
""",
}

QUIET = [option for name in ("cacheprovider", "randomly", "benchmark", "pytest_cov", "xdist") for option in ("-p", f"no:{name}")]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(map(repr, SUITES))}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another checkout of the plugin")
    parser.add_argument("--limit", type=float, default=900, help="seconds of wall time for one run")
    options = parser.parse_args()
    unknown = set(options.names) - SUITES.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    here = Path(__file__).resolve().parent.parent
    ways: dict[str, tuple[Path, list[str]]] = {"without": (here, []), "with": (here, ["--gpu-leak"])}
    if options.beside is not None:
        ways["beside"] = (options.beside.resolve(), ["--gpu-leak"])
    print(f"{'CPU seconds':40}", *(f"{name:>9}" for name in ways))
    for name in options.names or SUITES:
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, (checkout, arguments) in ways.items():
                taken[way].append(_run(SUITES[name], checkout, arguments, options.limit))
        print(f"{name:40}", *(f"{statistics.median(seconds):9.2f}" for seconds in taken.values()), flush=True)


def _run(source: str, checkout: Path, arguments: list[str], limit_s: float) -> float:
    """Return the CPU seconds of one run of pytest; infinity where it takes longer than the limit."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_suspects.py").write_text(source)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "pytest", "-q", *QUIET, *arguments, "test_suspects.py"]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling the plugin in each run would be measured
        try:
            subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return float("inf")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()

"""The plugin's own time a clean test before and after a framework is loaded, in one process each.

    python benchmarks/framework_time.py jax numpy           # frameworks that this interpreter has
    python benchmarks/framework_time.py tensorflow --live 100000

The tests of one run, in this order: without the framework, without it but reading 1.5 MB, with it loaded, with arrays
that come and go, and with `--live` arrays that stay all the while. Compared is what the plugin counts as its own
(`overhead_s`), by the tenth of the tests that took least: a busy machine lets the others take longer, and not all kinds
alike. The second kind is the measure for the fourth: after a test that has done something the processor's caches hold
less of the plugin's code, whether arrays were made or not. So the look for child processes, which is the same in all,
shows: it takes 4 us after a test that does nothing, and 8 us after both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MAKE = {
    "torch": "torch.ones(16, 16)",
    "jax": "jax.numpy.ones((16, 16))",
    "tensorflow": "tensorflow.ones((16, 16))",
    "numpy": "numpy.ones((16, 16))",
    "cupy": "over_host_memory()",
    "mlx": "mlx.core.ones((16, 16))",
}
"""How a framework makes a small array."""

LOAD = {
    "mlx": "import mlx.core; mlx.core.set_default_device(mlx.core.cpu)",
    "cupy": """import cupy, numpy
        global over_host_memory
        def over_host_memory():
            # Without a device: CuPy's array over the memory of one of NumPy's, as its own tests of pointers make it.
            base = numpy.ones((16, 16))
            memory = cupy.cuda.UnownedMemory(base.ctypes.data, base.nbytes, base, 0)
            return cupy.ndarray((16, 16), memptr=cupy.cuda.MemoryPointer(memory, 0))""",
}
"""What loads a framework, where that is not its import alone."""

SUITE = """
import pytest

LIVE = []
COUNT = {count}

class TestA:
    @pytest.fixture(scope="class", autouse=True)
    def nothing(self):
        pass

    @pytest.mark.parametrize("i", range(COUNT))
    def test_a_without(self, i):
        assert [i] * 3

    @pytest.mark.parametrize("i", range(COUNT))
    def test_a_reading(self, i):
        assert bytes(1_500_000).count(b"1") == 0

class TestB:
    @pytest.fixture(scope="class", autouse=True)
    def load(self):
        global {package}
        {load}
        {make}

    @pytest.mark.parametrize("i", range(COUNT))
    def test_b_loaded(self, i):
        assert [i] * 3

    @pytest.mark.parametrize("i", range(COUNT))
    def test_c_used(self, i):
        x = {make}
        assert x.shape == (16, 16)

class TestD:
    @pytest.fixture(scope="class", autouse=True)
    def live(self):
        LIVE.extend({make} for _ in range({live}))
        yield
        LIVE.clear()

    @pytest.mark.parametrize("i", range(COUNT))
    def test_d_many_live(self, i):
        assert [i] * 3
"""

PHASES = ("without", "reading", "loaded", "used", "many_live")


def own_times(framework: str, count: int, live: int) -> dict[str, float]:
    """Return the plugin's own time (microseconds) in the quick tenth of the tests of each phase."""
    load = LOAD.get(framework, f"import {framework}" + (".numpy" if framework == "jax" else ""))
    suite = SUITE.format(count=count, live=live, package=framework, load=load, make=MAKE[framework])
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "pytest.ini").write_text("[pytest]\n")
        (root / "test_it.py").write_text(suite)
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
        done = subprocess.run(
            [*pytest, "--gpu-leak", "--gpu-leak-report=report.json"],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        if not (root / "report.json").is_file():
            raise SystemExit(done.stdout + done.stderr)
        tests = json.loads((root / "report.json").read_text("utf-8"))["tests"]
    odd = [test["nodeid"] for test in tests if (test["outcome"], test["verdict"]) != ("passed", "clean")]
    if odd:
        print(f"{framework}: not clean: {len(odd)} tests, such as {odd[0]}")
    times = {
        phase: [test["overhead_s"] for test in tests if f"_{phase}[" in test["nodeid"] and test["nodeid"] not in odd]
        for phase in PHASES
    }
    return {phase: statistics.quantiles(values, n=10)[0] * 1e6 for phase, values in times.items() if len(values) > 1}


def main() -> None:
    """Measure each framework, and print a row of a table for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="+", choices=sorted(MAKE))
    parser.add_argument("--count", type=int, default=200, help="tests of each kind (%(default)s)")
    parser.add_argument("--live", type=int, default=100_000, help="arrays that stay (%(default)s)")
    options = parser.parse_args()
    print("| framework | without | without, 1.5 MB read | loaded | arrays come and go | many arrays live |")
    print("| --- | --- | --- | --- | --- | --- |")
    for framework in options.frameworks:
        times = own_times(framework, options.count, options.live)
        base = times["without"]
        cells = (f"{value:.0f} us ({value / base:.2f})" for value in times.values())
        print(f"| {framework} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

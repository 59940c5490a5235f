"""What the check adds to a run in instructions, which do not depend on how busy the machine is. Needs valgrind.

    python benchmarks/instructions.py             # six runs under cachegrind, some minutes; two at a time

300 trivial torch tests and one alone, each with the plugin blocked and with `--gpu-leak`: what the start takes, what a
test takes, and the ratio of the whole. An empty test without torch, with the plugin blocked and with it installed and
off. Instructions are no seconds: waits, page faults and the kernel are not counted.
"""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

from overhead import PLAIN, TESTS

COUNT = 300
INSTALLED = ["-p", "no:memray"]
CHECKED = [*INSTALLED, "--gpu-leak"]
EMPTY = "def test_empty():\n    pass\n"


def count_instructions(folder: pathlib.Path, options: list[str]) -> int:
    """Instructions of one run of pytest in a folder, in millions."""
    others = {entry.name for entry in importlib.metadata.entry_points(group="pytest11")} - {"gpuleak", "memray"}
    blocked = [word for name in sorted(others) for word in ("-p", f"no:{name}")]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *blocked, *options]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # Threads that wait for work in a loop would be counted as well; how often names collide in a dict depends on the seed.
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment["PYTHONHASHSEED"] = "0"
    subprocess.run(pytest, cwd=folder, env=environment, capture_output=True, check=True)  # compiles the modules
    cachegrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    done = subprocess.run(
        [*cachegrind, *pytest], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if found is None:
        raise SystemExit(f"valgrind counted nothing: {done.stderr[-500:]}")
    return int(found[1].replace(",", "")) // 1_000_000


def main() -> None:
    """Run all six and print the figures."""
    with tempfile.TemporaryDirectory() as root, concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = {}
        for count, more in ((0, INSTALLED), (1, CHECKED), (COUNT, CHECKED)):
            for name, options in (("off", PLAIN), ("on", more)):
                folder = pathlib.Path(root) / f"{name}{count}"
                folder.mkdir()
                (folder / "pytest.ini").write_text("[pytest]\n")
                tests = textwrap.dedent(TESTS).format(count=count, extra="") if count else EMPTY
                (folder / "test_it.py").write_text(tests)
                runs[name, count] = pool.submit(count_instructions, folder, options)
        millions = {key: run.result() for key, run in runs.items()}
    start = millions["on", 1] - millions["off", 1]
    whole, base = millions["on", COUNT], millions["off", COUNT]
    each = (whole - base - start) / (COUNT - 1)
    own = (base - millions["off", 1]) / (COUNT - 1)
    print(f"{COUNT} trivial tests: {base} million instructions without the plugin, {whole} with it: {whole / base:.3f}")
    idle = millions["on", 0]
    print(
        f"installed and off: {idle - millions['off', 0]} million more, of {millions['off', 0]}: {idle / millions['off', 0]:.3f}"
    )
    print(f"start: {start} million more, of {millions['off', 1]}; a test: {each:.3f} million more, of {own:.2f}")


if __name__ == "__main__":
    main()

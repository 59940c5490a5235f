"""Measures what only a CUDA device can show, and writes it as a Markdown page.

    python benchmarks/gpu_figures.py                                   # to stdout
    python benchmarks/gpu_figures.py --out docs/gpu-measurements.md    # as scripts/check-gpu does

The figures: the plugin's own time for a clean test on no device, one and two, with a report, which measures peaks; what a
reading of the counters takes; what the context, cuBLAS, cuFFT and cuDNN take of the device, as torch, `mem_get_info` and
NVML count it; the noise of each counter over 1,000 clean tests. With --cases, the verdicts of tests/cuda_standin on the
device beside those on the stand-in runtime; with --steps, lines of what else was run.

On the stand-in runtime of tests/cuda_standin it is a rehearsal: the page says so, and is never written below docs/.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import platform
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_suite import run_suite
from gpu_programs import CLEAN_TESTS, MOMENTS, NOISE, ROOT, SMALL_TESTS, run_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STAND_IN_VERDICTS = ROOT / "tests" / "cuda_standin" / "verdicts.jsonl"
"""The verdicts of tests/cuda_standin on the stand-in runtime, as `GPULEAK_CASE_VERDICTS` writes them."""
KIB = 1 << 10
MIB = 1 << 20
TESTS = 300
"""Tests of each kind by which the own time is measured."""

Verdicts = dict[str, dict[str, str]]


def read_driver() -> str:
    """Return the driver's version, or why it is unknown."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception as error:  # noqa: BLE001 - the figures stand without it
        return f"unknown ({type(error).__name__})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]


def size(count: int | None) -> str:
    """Write a number of bytes; `unknown` for None."""
    if count is None:
        return "unknown"
    if abs(count) >= MIB:
        return f"{count / MIB:,.1f} MiB"
    return f"{count / KIB:,.1f} KiB" if abs(count) >= KIB else f"{count} B"


def read_verdicts(path: Path) -> Verdicts:
    """Read the verdicts of each case, by the case and the test."""
    lines = path.read_text("utf-8").splitlines()
    return {one["case"]: one["verdicts"] for one in map(json.loads, lines)}


def compare_verdicts(expected: Verdicts, found: Verdicts) -> list[str]:
    """Write the table of stand-in against device: a row for each case, and what differs in it."""
    rows = []
    for case in sorted(expected.keys() | found.keys()):
        if case not in found or case not in expected:
            rows.append([f"`{case}`", "", "not run on the device" if case in expected else "not run on the stand-in"])
            continue
        tests = expected[case].keys() | found[case].keys()
        differing = [
            f"{test}: {expected[case].get(test, 'none')}; on the device {found[case].get(test, 'none')}"
            for test in sorted(tests)
            if expected[case].get(test) != found[case].get(test)
        ]
        rows.append([f"`{case}`", f"{len(tests) - len(differing)} of {len(tests)}", "; ".join(differing)])
    return table(["case", "verdicts as on the stand-in", "what differs"], rows)


def own_time(devices: int) -> tuple[list[str], bool]:
    """Measure the own time of clean tests; return the table, and whether a clean test was reported."""
    rows, reported = [], False
    for count in range(devices + 1):
        names = [f"cuda:{index}" for index in range(count)] or ["cpu"]
        tests = CLEAN_TESTS if count else SMALL_TESTS
        report = run_suite(tests.replace("{devices}", repr(names)).replace("{count}", str(TESTS)))
        summary, own = report["summary"], collections.defaultdict(list)
        for test in report["tests"]:
            own[test["nodeid"].partition("::")[2].partition("[")[0]].append(test["overhead_s"] * 1e6)
        reported = reported or bool(summary["leaked"] or summary["noted"])
        rows.append(
            [
                ", ".join(names),
                f"{statistics.median(own['test_small']):.0f} us",
                f"{statistics.median(own['test_clean']):.0f} us" if own["test_clean"] else "",
                f"{summary['leaked']} leaked, {summary['noted']} noted, {summary['unchecked']} unchecked",
                f"{summary['suspects']['tests']}, {summary['suspects']['check_s']:.2f} s",
            ]
        )
    head = [
        "device used by each test",
        "a tensor (median)",
        "layers, transforms, copies (median)",
        "verdicts",
        "suspects",
    ]
    return table(head, rows), reported


def moments(first: dict[str, Any]) -> list[str]:
    """Write what the device's memory was after each first use."""
    columns = ["allocated", "reserved", "in use", "NVML, all", "NVML, this process"]
    head = ["after", "took", *(f"`mem_get_info` {name}" if name == "in use" else name for name in columns)]
    return table(
        head,
        ([one["moment"], f"{one['ms']:.1f} ms", *(size(one[name]) for name in columns)] for one in first["moments"]),
    )


def noise(moved: dict[str, list[int]]) -> list[str]:
    """Write how far each counter moved over a clean test."""
    rows = []
    for key in sorted(moved):
        changes = [change for change in moved[key] if change]
        largest, smallest = max(moved[key]), min(moved[key])
        rows.append([key, f"{len(changes)} of {len(moved[key])}", size(smallest), size(largest), size(sum(moved[key]))])
    return table(["counter", "tests that moved it", "least", "most", "all together"], rows)


def main() -> int:
    """Measure, and write the page; return the exit status: 1 where a clean test was reported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the page to write; else it is printed")
    parser.add_argument("--cases", type=Path, help="verdicts of tests/cuda_standin on this device")
    parser.add_argument("--steps", type=Path, help="a file with a line for each part of scripts/check-gpu that has run")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("torch is not installed for this Python")
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: nothing to measure")
    first = run_program(MOMENTS)
    stand_in = "stand-in" in first["name"]
    out: Path | None = arguments.out
    if stand_in and out is not None and out.resolve().is_relative_to(ROOT / "docs"):
        sys.exit(f"{out} is for figures of a device, and {first['name']} is none")
    steady = run_program(NOISE)
    times, reported = own_time(steady["devices"])
    where = f"{first['count']} x {first['name']} ({size(first['total'])}), driver {read_driver()}"
    lines = ["# Measurements on a GPU", ""]
    if stand_in:
        lines += ["**A rehearsal on the stand-in runtime: no figure here is a device's.**", ""]
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    lines += [f"{today}, {where}, {versions}. `scripts/check-gpu` writes this page."]
    if arguments.steps is not None:
        lines += ["", "## What was run", "", *(f"- {step}" for step in arguments.steps.read_text("utf-8").splitlines())]
    lines += [
        "",
        "## The plugin's own time for a clean test",
        "",
        "With a report, which measures peaks.",
        "",
        *times,
        "",
    ]
    us = ", ".join(f"{name} {value:.1f} us" for name, value in steady["reading_us"].items())
    lines += [f"One reading of {steady['devices']} devices, processor time, least of five: {us}.", ""]
    lines += ["## What the first uses take", "", *moments(first), ""]
    if first["nvml"]:
        lines += [f"NVML: {first['nvml']}.", ""]
    lines += ["## Noise of the counters over 1,000 clean tests", "", *noise(steady["moved"])]
    if arguments.cases is not None:
        lines += ["", "## Stand-in against device", "", "`tests/cuda_standin/cases`, test by test.", ""]
        lines += compare_verdicts(read_verdicts(STAND_IN_VERDICTS), read_verdicts(arguments.cases))
    page = "\n".join(lines) + "\n"
    if out is None:
        print(page)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
        print(f"written: {out}")
    return 1 if reported else 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes docs/gpu-measurements.md from what scripts/check-gpu has kept of its parts in a folder.

    python benchmarks/gpu_page.py FOLDER PAGE

The folder has machine.json (benchmarks/gpu_figures.py writes it), and of the parts that have run: `steps`, a line for each,
verdicts.jsonl of tests/cuda_standin, planted_peaks.json, models.json, and the figures. What has not run is said to be missing, so that the page of a check
that was cut off shows what it had. Figures of the stand-in runtime never get a page below docs/.
"""

from __future__ import annotations

import collections
import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parent.parent
STAND_IN_VERDICTS = ROOT / "tests" / "cuda_standin" / "verdicts.jsonl"
"""The verdicts of tests/cuda_standin on the stand-in runtime, as `GPULEAK_CASE_VERDICTS` writes them."""
KIB = 1 << 10
MIB = 1 << 20
NOT_MEASURED = "Not measured: the part `figures` has not run, or was stopped before it came here."
NOT_RUN = "Not measured: the part `{}` has not run on this device."
ABOUT_MODELS = """\
Bytes above what was there before, without cuBLAS's workspaces. A run of each model is counted, and another one is recorded too, which
may change the order in which blocks are freed and so its peak ("by the record"). What the allocator's history is replayed to is held to
what that run has allocated, and the rows to what it has requested at most, which may be at another moment. The estimate is made on
the CPU (`docs/estimate.md`), and is held to the counted run."""
PARTS = ("gpu", "figures", "cases", "peaks", "models", "estimate", "examples", "corpus", "programs")
"""The parts of scripts/check-gpu, in their order."""

Json = dict[str, Any]
Verdicts = dict[str, dict[str, str]]


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
    """Read the verdicts of each case, by the case and the test; of a line that was cut off, none."""
    found: Verdicts = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            one = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[one["case"]] = one["verdicts"]
    return found


def compare_verdicts(expected: Verdicts, found: Verdicts) -> list[str]:
    """Write what differs between stand-in and device, a row for each such case, and list the other cases."""
    rows, same = [], []
    for case in sorted(expected.keys() & found.keys()):
        tests = expected[case].keys() | found[case].keys()
        differing = [
            f"{test}: {expected[case].get(test, 'none')}; on the device {found[case].get(test, 'none')}"
            for test in sorted(tests)
            if expected[case].get(test) != found[case].get(test)
        ]
        if differing:
            rows.append([f"`{case}`", f"{len(tests) - len(differing)} of {len(tests)}", "; ".join(differing)])
        else:
            same.append(case)
    lists = {
        "As on the stand-in": same,
        "Not run on the device": expected.keys() - found.keys(),
        "Not run on the stand-in": found.keys() - expected.keys(),
    }
    lines = table(["case", "verdicts as on the stand-in", "what differs"], rows) if rows else []
    for head, cases in lists.items():
        if cases:
            lines += ["", f"{head}: {', '.join(f'`{case}`' for case in sorted(cases))}."]
    return lines


def own_times(suites: list[Json]) -> list[str]:
    """Write the own time of clean tests: a row for each number of devices."""
    rows = []
    for suite in suites:
        own = collections.defaultdict(list)
        for kind, overhead_s in suite["tests"]:
            own[kind].append(overhead_s * 1e6)
        summary = suite["summary"]
        rows.append(
            [
                ", ".join(suite["devices"]),
                *(
                    f"{statistics.median(own[kind]):.0f} us" if own[kind] else ""
                    for kind in ("test_small", "test_clean")
                ),
                f"{summary['leaked']} leaked, {summary['noted']} noted, {summary['unchecked']} unchecked",
                f"{summary['suspects']['tests']}, {summary['suspects']['check_s']:.2f} s",
            ]
        )
    small, layers = "a tensor (median)", "layers, transforms, copies (median)"
    return table(["device used by each test", small, layers, "verdicts", "suspects"], rows)


def moments(first: Json) -> list[str]:
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


def steps_of(folder: Path) -> list[str]:
    """Write how each part ended, and which ones have not run."""
    path = folder / "steps"
    ended = path.read_text("utf-8").splitlines() if path.exists() else []
    run = {line.partition(":")[0] for line in ended}
    return [f"- {line}" for line in [*ended, *(f"{part}: not run" for part in PARTS if part not in run)]]


def planted_peaks(wrong: dict[str, list[str]]) -> list[str]:
    """Write which planted peaks were told wrongly, and how."""
    rows = [[f"`{file}`", ", ".join(facts)] for file, facts in sorted(wrong.items()) if facts]
    said = f"{len(wrong) - len(rows)} of {len(wrong)} are right in line, category, module, phase, part and peak."
    return [said, *(["", *table(["case", "wrong"], rows)] if rows else [])]


def models(found: Json) -> list[str]:
    """Write each model's peak by the counters, what a record of it tells, and how far the estimate is off."""
    rows = []
    for name, (allocated, _) in found["models"].items():
        told, estimate = found["rows"][name], found.get("estimated", {}).get(name)
        error = (
            "not run"
            if estimate is None
            else "not checked"
            if estimate[3:]
            else f"{100 * (estimate[0] / allocated - 1):+.1f} %"
        )
        gaps = (told["allocated"] - allocated, told["blocks"] - told["allocated"], told["rows"] - told["requested"])
        rows.append([name, size(allocated), *map(size, (*gaps, told["unsplit"], told["unexplained"])), error])
    head = [
        "model",
        "allocated",
        "by the record",
        "replayed: more",
        "rows: more",
        "unsplit",
        "not explained",
        "estimate",
    ]
    return table(head, rows)


def _read(folder: Path, name: str) -> Any:
    path = folder / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def write_page(folder: Path) -> str:
    """Return the page of a folder of results, which must have its machine.json."""
    machine, first, steady, times = (_read(folder, name) for name in ("machine", "moments", "noise", "own_times"))
    where = f"{machine['count']} x {machine['name']} ({size(machine['total'])}), driver {machine['driver']}"
    lines = ["# Measurements on a GPU", ""]
    if machine["stand_in"]:
        lines += ["**A rehearsal on the stand-in runtime: no figure here is a device's.**", ""]
    versions = f"torch {machine['torch']}, Python {machine['python']}"
    lines += [
        f"{machine['date']}, {where}, {versions}. `scripts/check-gpu` writes this page.",
        "",
        "## What was run",
        "",
    ]
    lines += [*steps_of(folder), "", "## The plugin's own time for a clean test", ""]
    lines += (
        ["Wall time of 300 tests of each kind, with a report, which measures peaks.", "", *own_times(times), ""]
        if times
        else [NOT_MEASURED, ""]
    )
    if steady:
        us = ", ".join(f"{name} {value:.1f} us" for name, value in steady["reading_us"].items())
        lines += [f"One reading of {steady['devices']} devices, processor time, least of five: {us}.", ""]
    lines += ["## What the first uses take", "", *(moments(first) if first else [NOT_MEASURED]), ""]
    if first and first["nvml"]:
        lines += [f"NVML: {first['nvml']}.", ""]
    lines += ["## Noise of the counters over 1,000 clean tests", ""]
    lines += noise(steady["moved"]) if steady else [NOT_MEASURED]
    wrong, peaks = _read(folder, "planted_peaks"), _read(folder, "models")
    lines += ["", "## Planted peaks", "", *(planted_peaks(wrong) if wrong else [NOT_RUN.format("peaks")])]
    lines += ["", "## Peaks of models", ""]
    lines += [ABOUT_MODELS, "", *models(peaks)] if peaks else [NOT_RUN.format("models")]
    lines += ["", "## Stand-in against device", "", "`tests/cuda_standin/cases`, test by test.", ""]
    found = read_verdicts(folder / "verdicts.jsonl")
    lines += compare_verdicts(read_verdicts(STAND_IN_VERDICTS), found) if found else ["Not compared: no case has run."]
    return "\n".join(lines) + "\n"


def main(folder: Path, page: Path) -> str:
    """Write the page; return why not, or nothing."""
    machine = _read(folder, "machine")
    if machine is None:
        return f"{folder} has no machine.json: nothing has been checked there"
    if machine["stand_in"] and page.resolve().is_relative_to(ROOT / "docs"):
        return f"{page} is for figures of a device, and {machine['name']} is none"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(write_page(folder), encoding="utf-8")
    return ""


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])) or None)

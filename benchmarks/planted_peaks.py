"""Compare what failed budgets say of planted peaks with the truth that stands in the first line of each file.

    python benchmarks/planted_peaks.py CASES FILE    # on CUDA; FILE gets the results as JSON

CASES is a folder of test files of one test over its budget each. The truth is a comment: `# truth: line=14|21; category=gradient;
phase=backward; module=Net; part=BYTES; peak=BYTES allocated=BYTES; why: ...`, with alternatives by `|`; `module` is the beginning
of a name, `part` one of the largest rows. Sizes may differ by 1 %. The exit status is 1 where a fact is wrong.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROWS = 4
"""The largest rows, of which one must be the planted part."""
LIMIT_S = 3600
"""Seconds that all cases may take. None is too slow to be run again: its peak is told by that run."""


def read_truth(path: Path) -> dict[str, list[str]]:
    """Return the facts of a file's first line, each with its alternatives."""
    with path.open(encoding="utf-8") as file:
        facts = re.findall(r"(\w+)=([^;\s]*|[^;]*?)\s*(?=;|\w+=)", file.readline())
    return {name: value.split("|") for name, value in facts}


def is_near(size: int, wanted: list[str]) -> bool:
    """Tell whether a size is one of these within 1 %."""
    return any(abs(size - int(one)) * 100 <= int(one) for one in wanted)


def what_is_wrong(truth: dict[str, list[str]], peak: dict[str, Any] | None) -> list[str]:
    """Return the facts that a peak has wrong, of the row that has most of them right."""
    if peak is None:
        return ["no peak was told"]
    rows = [
        {
            f"part {part['bytes']}": is_near(part["bytes"], truth["part"]),
            f"category {part['category']}": part["category"] in truth["category"],
            f"line {(part['created'] or {}).get('line')}": str((part["created"] or {}).get("line")) in truth["line"],
            f"module {part['module']}": part["module"].startswith(truth["module"][0]),
        }
        for part in peak["parts"][:ROWS]
    ]
    best = max(rows, key=lambda row: sum(row.values()), default={"part none": False})
    phase = (peak["moment"] or {}).get("phase")
    facts = {
        **best,
        f"phase {phase}": phase in truth["phase"],
        f"peak {peak['bytes']}": is_near(peak["bytes"], truth["allocated"]),
    }
    return [fact for fact, is_right in facts.items() if not is_right]


def run_cases(cases: Path) -> dict[str, Any]:
    """Run copies of the cases on CUDA, and return the report."""
    with tempfile.TemporaryDirectory(prefix="planted-peaks-") as folder:
        for path in cases.glob("test_*.py"):
            shutil.copy(path, folder)
        options = ["--gpu-leak", "--gpu-leak-report=report.json", f"--gpu-leak-confirm-limit={LIMIT_S}"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
            cwd=folder, env={**os.environ, "PEAKS_DEVICE": "cuda"}, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        report = Path(folder, "report.json")
        if not report.exists():
            sys.exit(
                f"pytest wrote no report (exit status {done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        found: dict[str, Any] = json.loads(report.read_bytes())
        return found


def main(cases: Path, results: Path) -> int:
    """Run the cases, keep and print what is wrong; return the exit status."""
    wrong: dict[str, list[str]] = {}
    for test in run_cases(cases)["tests"]:
        file = test["nodeid"].partition("::")[0]
        budgets = [finding for finding in test["findings"] if finding["kind"] == "budget"]
        if budgets or test["outcome"] == "failed":
            wrong[file] = what_is_wrong(read_truth(cases / file), budgets[0]["peak"] if budgets else None)
    for path in cases.glob("test_*.py"):
        wrong.setdefault(path.name, ["within its budget"])
    results.write_text(json.dumps(wrong, indent=1) + "\n", encoding="utf-8")
    for file, facts in sorted(wrong.items()):
        if facts:
            print(f"{file}: {', '.join(facts)}")
    print(f"planted: {sum(not facts for facts in wrong.values())} of {len(wrong)} right in all facts")
    return int(any(wrong.values()))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

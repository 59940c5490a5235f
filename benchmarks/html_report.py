"""The HTML report of 10,000 tests with 1,000 findings: time to write it, its size, and how long a browser needs.

    python benchmarks/html_report.py [--tests 10000] [--findings 1000] [--visits 3] [--keep report.html]

The browser is Chromium, headless, driven by playwright where both are installed ($CHROMIUM names another binary): from
the start of the navigation until the page has listed, sorted and drawn everything and answers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]

MIB = 1024**2
AREAS = (
    "attention",
    "checkpoint",
    "convolution",
    "distributed",
    "embedding",
    "loss",
    "metrics",
    "optimizer",
    "sampler",
)
ROOTS = (
    ("module", "HISTORY", ("[0]", ".loss"), ("list", "Record")),
    ("class", "Encoder._instances", ("[3]", ".state", "['weight']"), ("list", "Encoder", "dict")),
    ("cache", "positions", (" (cached result)",), ("functools.lru_cache",)),
    ("module", "HOOKS", ("['forward']", "[1]", ".activations"), ("dict", "list", "Hook")),
    ("thread", "prefetch", (".queue", "[0]"), ("Prefetcher", "collections.deque")),
)


def make_report(tests: int, findings: int, workers: int = 4) -> Json:
    """Make up a run, in the format of `report.json`: four workers, two devices, findings of several sorts."""
    chance = random.Random(5)
    every = max(1, tests // max(1, findings))
    held = {f"gw{number}": [800 * MIB, 300 * MIB, 900 * MIB] for number in range(workers)}
    records = []
    for number in range(tests):
        worker = f"gw{chance.randrange(workers)}"
        area = AREAS[number * len(AREAS) // tests]
        nodeid = f"tests/{area}/test_{area}_{number % 40}.py::TestLayers::test_backward[{number}-float32-cuda]"
        found = [make_finding(area, number, chance)] if number % every == 0 and number // every < findings else []
        before = list(held[worker])
        for leak in found:
            held[worker][("cuda:0", "cuda:1", "cpu").index(leak["device"])] += leak["bytes"]
        after = held[worker]
        memory = {
            f"cuda:{index}": {
                "allocated_before": before[index],
                "allocated_after": after[index],
                "reserved_before": before[index] + 200 * MIB,
                "reserved_after": after[index] + 200 * MIB,
                "peak": after[index] + chance.randrange(900) * MIB,
            }
            for index in (0, 1)
        }
        memory["host"] = {"heap_before": before[2], "heap_after": after[2] + chance.randrange(MIB)}
        failed = any(leak["failed"] for leak in found)
        verdict = "leaked" if failed else "noted" if found else "unchecked" if number % 97 == 5 else "clean"
        records.append(
            {
                "nodeid": nodeid,
                "verdict": verdict,
                "why_unchecked": "the test was skipped" if verdict == "unchecked" else None,
                "outcome": "skipped" if verdict == "unchecked" else "passed",
                "worker": worker,
                "duration_s": chance.random() * 2,
                "overhead_s": 0.00002,
                "memory": memory,
                "findings": found,
                "allowed": None,
                "file": nodeid.partition("::")[0],
                "line": number % 300 + 1,
                "faults": [],
            }
        )
    verdicts = [record["verdict"] for record in records]
    return {
        "schema": "pytest-gpuleak/report/1",
        "created": "2026-11-20T19:17:00+00:00",
        "environment": {
            "python": "3.11.7",
            "platform": "Linux-6.8-x86_64",
            "pytest": "9.2.0",
            "torch": "2.13.0+cu130",
            "devices": ["cuda:0 NVIDIA H200", "cuda:1 NVIDIA H200"],
        },
        "policy": {"growing_tensors": 0, "growing_bytes": None, "retained_bytes": MIB, "confirm": 1, "cycles": "note"},
        "summary": {
            "tests": tests,
            **{name: verdicts.count(name) for name in ("clean", "leaked", "noted", "allowed", "unchecked")},
            "fixtures_leaked": 0,
            "overhead_per_test_us": 21.4,
        },
        "tests": records,
        "fixtures": [],
        "stale": [],
        "incomplete": None,
        "faults": [],
    }


def make_finding(area: str, number: int, chance: random.Random) -> Json:
    """Make up one leak of a test."""
    kind, name, edges, types = ROOTS[chance.randrange(len(ROOTS))]
    root = f"app.{area}.{name}"
    shape = [chance.choice((64, 256, 1024)) for _ in range(2)]
    size = shape[0] * shape[1] * 4
    count = chance.randint(1, 12)
    device = chance.choice(("cuda:0", "cuda:0", "cuda:1", "cpu"))
    created = {
        "file": f"app/{area}/layers.py",
        "line": number % 400 + 1,
        "function": "forward",
        "code": "hidden = self.project(inputs).relu()",
    }
    array = {"shape": shape, "dtype": "float32", "device": device, "bytes": size, "storage_bytes": size}
    mood = chance.random()
    return {
        "kind": "growing" if mood < 0.6 else "retained",
        "failed": mood < 0.75,
        "known": 0.75 <= mood < 0.85,
        "device": device,
        "count": count,
        "bytes": size * count,
        "bytes_per_run": size * count if mood < 0.6 else 0,
        "fingerprint": f"{chance.getrandbits(64):016x}",
        "tensors": [{**array, "created": created}] * count,
        "holder": {
            "kind": kind,
            "root": root,
            "text": root + "".join(edges),
            "path": [{"edge": edge, "type": of} for edge, of in zip(edges, types, strict=True)],
            "file": f"app/{area}/{area}.py",
            "line": number % 200 + 1,
            "deciding": 0,
        },
        "other_holders": [],
        "autograd": {"nodes": 14, "saved_tensors": 6, "saved_bytes": 3 * size} if mood < 0.3 else None,
        "hint": f"`{root}` gets one entry more on each run: clear it in teardown, or append `loss.item()` in place of `loss`.",
        "why_unconfirmed": None,
        "metric": None,
        "contributions": [],
        "evidence": [f"run 1 left {count} tensors, run 2 left {count} more"],
    }


def time_browser(path: Path, visits: int) -> list[tuple[float, float]]:
    """Open the report; of each visit the seconds until all is listed and drawn, and those that a filter takes."""
    from playwright.sync_api import sync_playwright

    times = []
    with sync_playwright() as playwright:
        binary = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        for _ in range(visits):
            page = browser.new_context().new_page()
            page.goto("about:blank")
            start = time.perf_counter()
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready]", state="attached")
            page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
            opened = time.perf_counter() - start
            filtered = page.evaluate(
                """new Promise(done => {
                    const start = performance.now(), box = document.getElementById("filter-text");
                    new MutationObserver(() => requestAnimationFrame(() => done(performance.now() - start)))
                        .observe(document.getElementById("count"), {childList: true});
                    box.value = "attention HISTORY"; box.dispatchEvent(new Event("input"));
                })"""
            )
            times.append((opened, filtered / 1000))
            page.context.close()
        browser.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=10_000)
    parser.add_argument("--findings", type=int, default=1_000)
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="write the report here and keep it")
    options = parser.parse_args()
    report = make_report(options.tests, options.findings)
    with tempfile.TemporaryDirectory() as folder:
        path = (options.keep or Path(folder) / "report.html").resolve()
        source = Path(folder) / "report.json"
        source.write_text(json.dumps(report), encoding="utf-8")
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pytest_gpuleak", "convert", str(source), "-o", str(path)], check=True)
        print(f"read, rendered and written in {time.perf_counter() - start:.2f} s")
        print(f"size: {path.stat().st_size / 1e6:.2f} MB")
        try:
            times = time_browser(path, options.visits)
        except Exception as error:  # noqa: BLE001 - playwright or its browser may be missing
            print(f"not opened in a browser: {type(error).__name__}")
            return
        for opened, filtered in times:
            print(f"interactive after {opened:.2f} s; a filter answers in {filtered:.2f} s")


if __name__ == "__main__":
    main()

"""Runs a test file on the device, under the plugin or without it, for the benchmarks beside it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 900


def run_suite(source: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run a test file in a process of its own, and return its JSON report. Ends the program where none is written."""
    with tempfile.TemporaryDirectory(prefix="device-suite-") as folder:
        report = Path(folder, "report.json")
        done = _run_pytest(folder, source, limit_s, "--gpu-leak", f"--gpu-leak-report={report}")
        if not report.exists():
            output = done.stdout[-2000:] + done.stderr[-2000:]
            sys.exit(f"pytest wrote no report (exit status {done.returncode}):\n{output}")
        found: dict[str, Any] = json.loads(report.read_bytes())
        return found


def failed_without_the_plugin(source: str, limit_s: float = LIMIT_S) -> set[str]:
    """Run a test file with the plugin switched off, and return the names of the tests that did not pass."""
    with tempfile.TemporaryDirectory(prefix="device-suite-") as folder:
        done = _run_pytest(folder, source, limit_s, "--no-gpu-leak", "-rfEs", "--tb=no")
    if done.returncode not in (0, 1):
        sys.exit(f"pytest failed without the plugin (exit status {done.returncode}):\n{done.stdout[-2000:]}")
    return set(re.findall(r"^(?:FAILED|ERROR|SKIPPED) \S+::(\w+)", done.stdout, re.MULTILINE))


def _run_pytest(folder: str, source: str, limit_s: float, *options: str) -> subprocess.CompletedProcess[str]:
    file = Path(folder, "test_device.py")
    file.write_text(source, encoding="utf-8")
    # Rewriting the assertions of thousands of tests takes longer than running them.
    common = ["-q", "--assert=plain", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", folder]
    command = [sys.executable, "-m", "pytest", *common, *options, str(file)]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"pytest {' '.join(options)} was stopped after {limit_s:.0f} s")

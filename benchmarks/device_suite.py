"""Runs a test file on the device under the plugin, for the benchmarks beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 900


def run_suite(source: str) -> dict[str, Any]:
    """Run a test file in a process of its own, and return its JSON report. Ends the program where none is written."""
    with tempfile.TemporaryDirectory(prefix="device-suite-") as folder:
        file, report = Path(folder, "test_device.py"), Path(folder, "report.json")
        file.write_text(source, encoding="utf-8")
        options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", folder]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "--gpu-leak", f"--gpu-leak-report={report}", str(file)],
            cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        if not report.exists():
            output = done.stdout[-2000:] + done.stderr[-2000:]
            sys.exit(f"pytest wrote no report (exit status {done.returncode}):\n{output}")
        found: dict[str, Any] = json.loads(report.read_bytes())
        return found

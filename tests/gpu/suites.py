"""What the suites of several frameworks on a device have in common."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import Run


def answer_of(program: str) -> str:
    """Ask a process of its own, so that this one starts no device; return what it prints, or nothing where it fails."""
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return "" if asked.returncode else asked.stdout.strip()


def planted(found: Run) -> dict[str, tuple[str, int, str | None]]:
    """Return kind, bytes and root of the one finding of each test that has leaked on the first device."""
    return {
        name: (finding["kind"], finding["bytes"], (finding["holder"] or {}).get("root"))
        for name, test in found.tests.items()
        if test["verdict"] == "leaked"
        for finding in test["findings"]
        if finding["device"] == "cuda:0"
    }

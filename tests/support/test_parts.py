"""What `scripts/run_parts.py` rests on."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.run_parts import ALL_NEED_TORCH

TESTS = Path(__file__).resolve().parents[1]
IMPORTS_TORCH = re.compile(r"^(?:(?:import|from) torch\b|\S.*importorskip\(\s*\"torch\b)", re.MULTILINE)
"""Lines outside functions and texts that import torch while a file is collected."""
AFTER_A_SKIP = {"tests/cuda_standin/test_peaks.py"}
"""Files that are skipped before they import it, but where a device or the stand-in is."""


def test_a_file_imports_torch_as_it_is_collected_only_where_all_its_tests_need_it() -> None:
    """One such file among others, and each search of their tests walks torch's 140,000 objects: three times the heap."""
    wrong = []
    for path in sorted(TESTS.rglob("test_*.py")):
        text = re.sub(r'"""(?:.|\n)*?"""', "", path.read_text("utf-8"))
        name = path.relative_to(TESTS.parent).as_posix()
        if IMPORTS_TORCH.search(text) and not ALL_NEED_TORCH.search(text) and name not in AFTER_A_SKIP:
            wrong.append(name)
    assert wrong == []

"""The program that docs/memory.md shows prints what stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "memory.md"


@pytest.mark.slow
@pytest.mark.torch
def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    found = re.search(r"```python\n(import torch\n.*?)```\n\n```text\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    (tmp_path / "net.py").write_text(found[1], "utf-8")
    done = subprocess.run([sys.executable, "net.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == found[2]

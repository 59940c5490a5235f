"""The program that docs/memory.md shows prints what stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "memory.md"


@pytest.mark.slow
@pytest.mark.torch
def test_the_example_prints_what_the_page_shows(run_with_torch: Any) -> None:
    found = re.search(r"```python\n(import torch\n.*?)```\n\n```text\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    assert run_with_torch(found[1], file="net.py").stdout == found[2]

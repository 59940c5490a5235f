"""The table of codes is complete and its pages are current; tests/acceptance/holders/test_planted.py runs the examples on them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from pytest_gpuleak.explain.hints.order import ORDER
from pytest_gpuleak.model.codes.table import CODES, TOPICS, page
from pytest_gpuleak.model.findings import KIND_CODES, FindingKind

ROOT = Path(__file__).resolve().parents[3]
KINDS = {code: kind for kind, code in KIND_CODES.items()}


def test_each_pattern_and_each_kind_has_one_code() -> None:
    assert sorted([*ORDER, *KINDS]) == sorted(CODES)
    assert set(KIND_CODES) == set(get_args(FindingKind))
    assert len(KINDS) == len(KIND_CODES)
    assert sum(map(len, TOPICS.values())) == len(CODES)
    assert len({code.title for code in CODES.values()}) == len(CODES)


@pytest.mark.parametrize("code", CODES.values(), ids=list(CODES))
def test_a_code_has_a_full_page(code: Any) -> None:
    assert re.fullmatch(r"GL\d{3}", code.id)
    assert 10 < len(code.title) < 60
    assert not code.title.endswith(".")
    lines = page(code).splitlines()
    assert lines[0] == f"# {code.id} {code.title}"
    assert all(len(line) <= 80 or "https://" in line or line.startswith("    ") for line in lines)
    assert all(text.strip() for text in (code.pattern, code.leaks, code.why, code.fix, code.fixed, code.known_problems))


def test_the_libraries_named_are_those_of_the_page_on_real_leaks() -> None:
    text = (ROOT / "docs" / "real-leaks.md").read_text("utf-8")
    named = [sighting for code in CODES.values() for sighting in code.seen]
    assert named
    for sighting in named:
        rows = [line for line in text.splitlines() if line.startswith("| [") and f"]({sighting.url})" in line]
        assert any(f"| {sighting.release.partition(' (')[0]} |" in row for row in rows), sighting

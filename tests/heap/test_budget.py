"""The bound of searches: a count, the same on each machine."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

import pytest_gpuleak
from pytest_gpuleak.heap.budget import Budget

PACKAGE: Final = Path(pytest_gpuleak.__file__).parent

READS_CLOCKS: Final = {"heap/long_work.py"}
"""Tells the user that work takes long, and decides nothing."""

CLOCKS: Final = {
    *("monotonic", "perf_counter", "process_time", "thread_time", "time"),
    *("monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns", "time_ns", "clock_gettime"),
}


def test_steps_are_counted_to_the_last() -> None:
    budget = Budget(10)
    assert [budget.worked(4), budget.worked(5), budget.worked(1), budget.worked(1)] == [False, False, True, True]
    assert (budget.left, budget.spent) == (-1, True)


def test_without_steps_it_is_spent_at_once() -> None:
    assert Budget(0).spent


def test_a_part_counts_in_the_whole_and_takes_no_more_than_is_left() -> None:
    whole = Budget(100)
    part = whole.part(60)
    inner = part.part(50)
    assert not inner.worked(40)
    assert (inner.left, part.left, whole.left) == (10, 20, 60)
    assert whole.part(1000).left == 60
    whole.worked(61)
    assert whole.part(5).spent
    assert not part.spent


def modules() -> list[Path]:
    folders = ("explain", "heap", "adapters/torch")
    return sorted(path for folder in folders for path in (PACKAGE / folder).rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_nothing_that_searches_reads_a_clock(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for alias in node.names
    }
    attributes = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    }
    reads = bool((imported | attributes) & CLOCKS)
    assert reads is (path.relative_to(PACKAGE).as_posix() in READS_CLOCKS)

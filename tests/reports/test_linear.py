"""What reads many entries, findings or values takes ten times as long for ten times as many, and not a hundred times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.baseline.file import Baseline
from pytest_gpuleak.baseline.matching import Judge
from pytest_gpuleak.cli.merge import merge_reports
from pytest_gpuleak.model.findings import Finding, Holder, KnownLeak
from pytest_gpuleak.model.records import RunReport
from tests.support.calls import count_calls

if TYPE_CHECKING:
    from collections.abc import Callable


def judge_by_a_baseline(size: int) -> None:
    """Hold `size` findings of one holder to a baseline with as many entries of it."""
    holder = Holder("cache", "app.cached", "app.cached[0]")
    found = Finding("retained", True, "cpu", 1, 100, 0, "f" * 16, holder=holder)
    entries = [KnownLeak(f"test_app.py::test_{index}", None, "retained", "cpu", 100, "f" * 16) for index in range(size)]
    judge = Judge(Baseline(tuple(entries)))
    for index in range(size):
        judge.settle([found], f"test_other.py::test_{index}", None)
    matched = judge.find_all((found, f"test_other.py::test_{index}", None) for index in range(size))
    assert len(matched) == size


class Text(str):
    """A text whose comparisons are calls of Python functions, so that they are counted."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


def merge_what_differs(size: int) -> None:
    """Merge a report whose environment says `size` different things under one key."""
    differing = {"differing": {"torch": [Text(f"2.{index}") for index in range(size)]}}
    report = RunReport("", differing, {}, {}, (), ())
    merged = merge_reports([report, report])
    assert len(merged.environment["differing"]["torch"]) == size


@pytest.mark.parametrize("work", [judge_by_a_baseline, merge_what_differs])
def test_ten_times_as_much_takes_ten_times_as_long(work: Callable[[int], None]) -> None:
    assert count_calls(lambda: work(2_000)) < 12 * count_calls(lambda: work(200))

"""The tree of culprits and the times of the HTML report."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from pytest_gpuleak.model.findings import FixtureRecord, Holder
from pytest_gpuleak.reports.html.costs import describe_cost, describe_costs, duration, find_dearest
from pytest_gpuleak.reports.html.rows import find_all
from pytest_gpuleak.reports.html.tree import Branch, build_tree, find_culprits
from tests.reports.test_html import MIB, page_of


def tree_of(report: Any) -> list[Branch]:
    return build_tree(find_culprits(find_all(report)))


def held_by(make: Any, root: str, size: int, file: str | None = "app.py", **changes: Any) -> Any:
    return make.finding(bytes=size, holder=Holder("module", root, f"{root}[0]", (), file, 3), **changes)


class TestTree:
    def test_holders_of_one_file_are_a_branch_and_the_largest_branch_is_first(self, make: Any) -> None:
        report = make.report(
            make.test("t.py::test_a", held_by(make, "app.A", 3 * MIB)),
            make.test("t.py::test_b", held_by(make, "lib.C", 5 * MIB, "lib.py")),
            make.test("t.py::test_c", held_by(make, "app.B", 4 * MIB)),
        )
        first, second = tree_of(report)
        assert (first.file, first.bytes, first.share, first.about) == ("app.py", 7 * MIB, 100.0, "2 holders")
        assert [(one.held, one.share) for one in first.culprits] == [("app.B", 57.1), ("app.A", 42.8)]
        assert first.only is None
        assert second.only is not None
        assert (second.only.held, second.only.share) == ("lib.C", 71.4)

    def test_a_holder_lists_each_test_and_fixture_once_by_size(self, make: Any) -> None:
        found = held_by(make, "app.A", MIB)
        report = make.report(
            make.test("t.py::test_a", found, dataclasses.replace(found, kind="retained")),
            make.test("t.py::test_b", held_by(make, "app.A", 9 * MIB)),
            *(make.test(f"t.py::test_{at}", held_by(make, "app.A", 5)) for at in range(10)),
            fixtures=(FixtureRecord("index", "module", "", (held_by(make, "app.A", 4 * MIB),)),),
        )
        (branch,) = tree_of(report)
        assert branch.only is not None
        shown = [(leaf.name, leaf.bytes, leaf.number) for leaf in branch.only.leaves]
        assert shown[:3] == [
            ("t.py::test_b", 9 * MIB, 1),
            ("fixture 'index'", 4 * MIB, 2),
            ("t.py::test_a", 2 * MIB, 3),
        ]
        assert (len(shown), branch.only.leaves_left) == (10, 3)
        text = page_of(report).text
        assert "t.py::test_b 9.0 MiB fixture 'index' 4.0 MiB t.py::test_a 2.0 MiB" in text
        assert "and 3 more" in text

    def test_what_fails_stands_before_what_does_not(self, make: Any) -> None:
        known = held_by(make, "app.A", 9 * MIB, failed=False, known=True)
        report = make.report(make.test("t", known), make.test("u", held_by(make, "app.B", 1)))
        assert [(branch.state, branch.bytes) for branch in tree_of(report)] == [("leaked", 1), ("known", 9 * MIB)]

    @pytest.mark.parametrize("size", [0, -5, 10**400])
    def test_odd_sizes_have_a_share(self, make: Any, size: int) -> None:
        report = make.report(
            make.test("t", held_by(make, "app.A", size)), make.test("u", held_by(make, "b", 1, "b.py"))
        )
        assert all(0.0 <= branch.share <= 100.0 for branch in tree_of(report))

    def test_more_holders_than_are_shown_are_counted(self, make: Any) -> None:
        tests = [make.test(f"t{at}", held_by(make, f"app.A{at}", at + 1, f"a{at}.py")) for at in range(45)]
        assert "and 5 more holders, among the findings below" in page_of(make.report(*tests)).text


class TestTimes:
    def test_where_the_time_went(self, make: Any) -> None:
        suspect = make.test(
            "t.py::test_a", make.finding(), overhead_s=2.6, suspect_s={"check": 2.5, "reruns": 0.5, "search": 1.25}
        )
        clean = [make.test(f"t.py::test_{at}", overhead_s=0.00002) for at in range(3)]
        assert describe_costs([suspect, *clean]) == (
            ("Tests", "2.0 s", "4 tests, setup and teardown included"),
            ("Check where nothing was suspected", "60 \u00b5s", "3 tests, 20 \u00b5s the median"),
            ("Check of suspects", "2.5 s", "1 test: re-runs 500 ms, search for holders 1.2 s, the rest 750 ms"),
        )
        text = page_of(make.report(suspect, *clean)).text
        assert "Time 500 ms; check 2.5 s (re-runs 500 ms, search 1.2 s)" in text
        assert "t.py::test_a leaked 2.5 s 500 ms 1.2 s 500 ms" in text

    def test_the_suspects_that_took_longest_come_first_and_few_are_shown(self, make: Any) -> None:
        tests = [make.test(f"t{at}", suspect_s={"check": float(at)}) for at in range(20)]
        assert [cost.name for cost in find_dearest(tests)] == [f"t{at}" for at in range(19, 9, -1)]

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0 s"),
            (0.000021, "21 \u00b5s"),
            (0.0043, "4.3 ms"),
            (0.043, "43 ms"),
            (2.54, "2.5 s"),
            (59.97, "60.0 s"),
            (200, "3 min 20 s"),
            (7260, "2 h 1 min"),
        ],
    )
    def test_a_time_is_written_in_a_unit_that_fits(self, seconds: float, text: str) -> None:
        assert duration(seconds) == text

    @pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
    def test_a_time_that_is_none_counts_as_none(self, make: Any, seconds: float) -> None:
        odd = make.test("t", duration_s=seconds, overhead_s=seconds, suspect_s={"check": seconds})
        assert describe_cost(odd) == "0 s; check 0 s (re-runs 0 s, search 0 s)"
        assert [time for _, time, _ in describe_costs([odd])] == ["0 s", "0 s"]


def test_what_has_no_holder_is_named_by_what_it_is(make: Any) -> None:
    kinds = ("process", "unattributed", "host", "growing", "cycle")
    tests = [make.test(f"t{at}", make.finding(kind=kind, holder=None)) for at, kind in enumerate(kinds)]
    assert [branch.only.held for branch in tree_of(make.report(*tests)) if branch.only] == [
        "processes left running",
        "memory that no tensor explains",
        "memory that no tensor explains",
        "holder not known",
        "reference cycles that could not be read",
    ]

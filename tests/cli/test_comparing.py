"""What has changed from one report to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.cli.compare import compare_reports
from pytest_gpuleak.model.findings import FixtureRecord

if TYPE_CHECKING:
    from tests.reports.conftest import Make


def test_nothing_has_changed(make: type[Make]) -> None:
    report = make.report(make.test("a", make.finding()), make.test("b"))
    found = compare_reports(report, report)
    assert not found.is_worse
    assert not any((found.new, found.gone, found.grown, found.shrunk, found.unseen, found.verdicts))


def test_new_and_gone(make: type[Make]) -> None:
    old = make.report(make.test("a", make.finding()), make.test("b"))
    new = make.report(make.test("a"), make.test("b", make.finding(bytes=7)), make.test("c"))
    found = compare_reports(old, new)
    assert [(leak.place, leak.bytes) for leak in found.new] == [("b", 7)]
    assert [leak.place for leak in found.gone] == ["a"]
    assert found.verdicts == (("a", "leaked", "clean"), ("b", "clean", "leaked"))
    assert (found.added, found.removed, found.is_worse) == (1, 0, True)


@pytest.mark.parametrize(("size", "grown", "shrunk"), [(111, 1, 0), (110, 0, 0), (90, 0, 0), (89, 0, 1)])
def test_sizes_within_the_tolerance_are_the_same(size: int, grown: int, shrunk: int, make: type[Make]) -> None:
    old, new = (make.report(make.test("a", make.finding(bytes=one))) for one in (100, size))
    found = compare_reports(old, new)
    assert (len(found.grown), len(found.shrunk), found.is_worse) == (grown, shrunk, bool(grown))
    assert len(compare_reports(old, new, 0.0).grown) == (size > 100)


def test_findings_that_digits_alone_tell_apart_are_added_up(make: type[Make]) -> None:
    old = make.report(make.test("a", make.finding(bytes=50), make.finding(bytes=50)))
    new = make.report(make.test("a", make.finding(bytes=50), make.finding(bytes=50), make.finding(bytes=50)))
    (change,) = compare_reports(old, new).grown
    assert (change.old.bytes, change.new.bytes) == (100, 150)


def test_a_leak_of_a_test_that_was_not_run_or_checked_is_not_gone(make: type[Make]) -> None:
    old = make.report(make.test("a", make.finding()), make.test("b", make.finding()))
    new = make.report(make.test("a", verdict="unchecked"))
    found = compare_reports(old, new)
    assert (found.gone, [leak.place for leak in found.unseen], found.removed) == ((), ["a", "b"], 1)


def test_a_known_leak_is_a_leak_and_a_note_is_none(make: type[Make]) -> None:
    leak, known, note = make.finding(), make.finding(failed=False, known=True), make.finding(failed=False)
    with_known = make.report(make.test("a", known))
    assert not compare_reports(make.report(make.test("a", leak)), with_known).is_worse
    assert compare_reports(make.report(make.test("a", note)), with_known).is_worse


def test_fixtures_are_compared_too(make: type[Make]) -> None:
    fixture = FixtureRecord("model", "module", "t/test_a.py", (make.finding(),))
    found = compare_reports(make.report(), make.report(fixtures=(fixture,)))
    assert [leak.place for leak in found.new] == ["fixture 'model' (module scope, t/test_a.py)"]
    assert len(compare_reports(make.report(fixtures=(fixture,)), make.report()).gone) == 1


def test_attempts_count_as_one(make: type[Make]) -> None:
    once = make.report(make.test("a", make.finding()))
    thrice = make.report(*[make.test("a", make.finding())] * 3)
    assert not compare_reports(once, thrice).is_worse


def test_thousands_of_changes_are_cut_and_counted(make: type[Make]) -> None:
    from pytest_gpuleak.cli.output import MAX_CHANGES, render_comparison

    tests = [make.test(f"t.py::test_{at}", make.finding()) for at in range(MAX_CHANGES + 3)]
    lines = render_comparison(compare_reports(make.report(), make.report(*tests)))
    assert len(lines) == 2 * MAX_CHANGES + 2
    assert lines[-2] == "NEW     and 3 more"
    assert lines[-1].startswith(f"gpu-leak: leaks: {MAX_CHANGES + 3} new")

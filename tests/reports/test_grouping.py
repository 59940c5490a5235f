from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.model.findings import FixtureRecord, HelperProcess, Holder, PathStep
from pytest_gpuleak.reports.grouping import group_findings
from tests.reports.conftest import Make
from tests.reports.test_json import FINDINGS

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.records import TestRecord
    from pytest_gpuleak.reports.grouping import Entry

HOLDER = Holder("module", "app.A", "app.A[0]", (PathStep("[0]", "list"),), "app.py", 3)
BASE = Make.finding(holder=HOLDER)


def grouped(*findings: Finding) -> list[list[int]]:
    """Group findings, each of a test of its own: by group, their positions."""
    entries: list[Entry] = [(Make.test(f"t.py::test_{at}", one), one) for at, one in enumerate(findings)]
    groups = group_findings(entries)
    return [[entries.index(entry) for entry in group.entries] for group in groups]


def test_the_kinds_of_a_tensors_leak_are_one_and_the_largest_comes_first() -> None:
    small = dataclasses.replace(BASE, kind="retained", bytes=1, fingerprint="01")
    large = dataclasses.replace(BASE, kind="unconfirmed", bytes=9 * BASE.bytes, fingerprint="02")
    assert grouped(small, BASE, large) == [[2, 1, 0]]


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(BASE, device="cuda:1"),
        dataclasses.replace(BASE, kind="cycle"),
        dataclasses.replace(BASE, kind="host", metric="heap"),
        dataclasses.replace(BASE, metric="reserved"),
        dataclasses.replace(BASE, failed=False),
        dataclasses.replace(BASE, failed=False, known=True),
        dataclasses.replace(BASE, holder=None),
        dataclasses.replace(BASE, process=HelperProcess(4711, "EngineCore")),
        dataclasses.replace(BASE, holder=dataclasses.replace(HOLDER, kind="class")),
        dataclasses.replace(BASE, holder=dataclasses.replace(HOLDER, root="app.B")),
        dataclasses.replace(BASE, holder=dataclasses.replace(HOLDER, file="other/app.py")),
    ],
)
def test_what_differs_in_more_than_the_edge_stays_apart(other: Finding) -> None:
    assert sorted(grouped(BASE, other)) == [[0], [1]]


def test_the_processes_of_a_fixture_and_the_workers_of_a_pool_are_one() -> None:
    workers = [HelperProcess(4711, "Worker-1"), HelperProcess(4712, "Worker-2"), HelperProcess(9, "x", "", "server")]
    workers += [HelperProcess(10, "y", "", "server")]
    assert sorted(grouped(*(dataclasses.replace(BASE, process=one) for one in workers))) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "holder", [None, Holder("unknown", "", ""), Holder("unknown", "x", "x"), Holder("native", "", "")]
)
def test_what_nobody_known_holds_stays_alone(holder: Holder | None) -> None:
    found = dataclasses.replace(BASE, holder=holder)
    assert sorted(grouped(found, found)) == [[0], [1]]


def test_native_code_is_told_apart_by_its_path() -> None:
    native = dataclasses.replace(BASE, holder=Holder("native", "", "x", (PathStep(".x", "y"),)))
    assert sorted(grouped(native, dataclasses.replace(native, fingerprint="07"), native)) == [[0, 2], [1]]


def test_groups_are_sorted_by_their_sum_and_what_fails_comes_first() -> None:
    noted = dataclasses.replace(BASE, failed=False, bytes=2**40)
    other = dataclasses.replace(BASE, holder=dataclasses.replace(HOLDER, root="app.B"), bytes=BASE.bytes + 1)
    assert grouped(noted, other, BASE, BASE) == [[2, 3], [1], [0]]


def test_tests_and_fixtures_are_counted_once_each() -> None:
    small = dataclasses.replace(BASE, bytes=1)
    one, two = (FixtureRecord(name, "module", "t.py", (BASE,)) for name in ("one", "two"))
    again = dataclasses.replace(one, worker="gw1")
    test = Make.test("t.py::test_it", BASE)
    (group,) = group_findings([(one, small), (test, BASE), (two, BASE), (test, small), (again, small)])
    assert group.bytes == 2 * BASE.bytes + 3
    assert group.tests == 1
    assert [fixture.name for fixture in group.fixtures] == ["two", "one"]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
@given(st.lists(st.lists(FINDINGS, max_size=3), max_size=4))
def test_nothing_is_lost_and_nothing_counted_twice(found: list[list[Any]]) -> None:
    tests: list[TestRecord] = [Make.test(f"t.py::{at}", *some) for at, some in enumerate(found)]
    entries: list[Entry] = [(test, one) for test in tests for one in test.findings]
    groups = group_findings(entries)
    flat = list(itertools.chain.from_iterable(group.entries for group in groups))
    assert sorted(map(repr, flat)) == sorted(map(repr, entries))
    for group in groups:
        sizes = [one.bytes for _, one in group.entries]
        assert sizes == sorted(sizes, reverse=True)
        assert group.bytes == sum(sizes)
        assert group.tests == len({id(record) for record, _ in group.entries})

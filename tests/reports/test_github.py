from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_gpuleak.model.findings import KnownLeak
from pytest_gpuleak.reports.github import MAX_ANNOTATIONS, escape_property, render_annotations
from tests.support.hostile import TEXTS, hostile_report

ERROR = re.compile(r"::error file=([^,:]+),line=(\d+),title=([^,:]+)::(.*)")


def test_nothing_leaked_nothing_said(make: Any) -> None:
    assert render_annotations(make.report(make.test("t.py::test_a", make.finding(failed=False)))) == []


def test_a_leak_is_an_error_at_its_creating_line(make: Any) -> None:
    (line,) = render_annotations(make.report(make.test("t.py::test_a[1,2]", make.finding())))
    match = ERROR.fullmatch(line)
    assert match is not None
    assert match[1] == "app/model.py"
    assert match[2] == "14"
    assert match[3] == "GPU leak%3A t.py%3A%3Atest_a[1%2C2]"
    assert match[4].startswith("t.py::test_a[1,2]%0Agrowing: 1 tensor, 4.0 MiB on cuda:0;")
    assert "held by app.metrics.HISTORY[0]" in match[4]


def test_a_culprit_that_many_tests_met_is_annotated_once(make: Any) -> None:
    tests = [make.test(f"t.py::test_a[{index}]", make.finding()) for index in range(30)]
    (line,) = render_annotations(make.report(*tests))
    assert line.endswith("%0Aalso in 29 more, 120.0 MiB in all, see GPU LEAKS")


def test_the_largest_finding_of_a_culprit_is_annotated_and_the_largest_culprit_first(make: Any) -> None:
    sizes = [4, 9 * 1024**2, 5]
    small = make.test("t.py::test_small", make.finding(fingerprint="07", bytes=7))
    tests = [make.test(f"t.py::test_a[{index}]", make.finding(bytes=size)) for index, size in enumerate(sizes)]
    first, second = render_annotations(make.report(small, *tests))
    assert "test_a[1]%0Agrowing: 1 tensor, 9.0 MiB" in first
    assert first.endswith("%0Aalso in 2 more, 9.0 MiB in all, see GPU LEAKS")
    assert "test_small" in second


def test_more_than_github_shows_are_counted(make: Any) -> None:
    tests = [make.test("t.py::test_a", make.finding(fingerprint=f"{index:04x}")) for index in range(13)]
    *errors, last = render_annotations(make.report(*tests))
    assert len(errors) == MAX_ANNOTATIONS
    assert all(ERROR.fullmatch(line) for line in errors)
    assert last == "gpu-leak: 3 more leaks not annotated (GitHub shows 10 errors a step); see GPU LEAKS"


def test_what_the_baseline_knows_takes_one_notice(make: Any) -> None:
    known = make.test("t.py::test_a", make.finding(failed=False, known=True))
    entry = KnownLeak("t.py::test_b", None, "growing", "cuda", 4096, "00")
    lines = render_annotations(make.report(known, known, stale=(entry,)))
    assert lines == ["::notice title=GPU leaks::2 known leaks, 1 of the baseline gone: remove them from it"]


def test_escapes_are_githubs() -> None:
    assert escape_property("100%\r\na:b,c") == "100%25%0D%0Aa%3Ab%2Cc"


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_hostile_text_starts_no_command_of_its_own(make: Any, text: str) -> None:
    lines = render_annotations(hostile_report(make, text))
    for line in lines[:-1]:
        match = ERROR.fullmatch(line)
        assert match is not None, line
        assert line.isprintable()
        assert len(line) < 6000
        assert not re.search("%(?!25|0D|0A|3A|2C)", line)
        assert ".." not in match[1].split("/")
    assert lines[-1].startswith("::notice title=GPU leaks::1 known leak, 2 of the baseline gone")

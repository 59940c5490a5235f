from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_gpuleak.model.findings import ArrayInfo, Contribution, FixtureRecord, Holder, KnownLeak
from pytest_gpuleak.model.source_files import Origin
from pytest_gpuleak.reports import sarif
from pytest_gpuleak.reports.formats import render
from pytest_gpuleak.reports.github import render_annotations
from pytest_gpuleak.reports.source_places import (
    LAST_RESORT,
    MAX_LINE,
    Place,
    place_at,
    place_of_known,
    places_of,
    root_of,
)
from pytest_gpuleak.reports.terminal.findings import render_finding, render_short


def arrays(*files: str) -> tuple[ArrayInfo, ...]:
    return tuple(ArrayInfo((1,), "float32", "cpu", 4, 4, Origin(file, 5, "f", "")) for file in files)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("app/model.py", "app/model.py"),
        ("./app//model.py", "app/model.py"),
        ("app\\model.py", "app/model.py"),
        ("größe/mo del.py", "größe/mo del.py"),
        ("..model.py", "..model.py"),
    ],
)
def test_a_path_below_the_root_is_a_place(file: str, expected: str) -> None:
    assert place_at(file, 3) == Place(expected, 3)


@pytest.mark.parametrize(
    "file",
    [
        None,
        "",
        ".",
        "/etc/passwd",
        "\\\\host\\share\\x.py",
        "C:\\x.py",
        "c:x.py",
        "~/x.py",
        "../x.py",
        "app/../../x.py",
        "app\\..\\..\\x.py",
        "a/..",
        "<string>",
        "<frozen importlib._bootstrap>",
        ".venv/lib/python3.11/site-packages/torch/x.py",
        "a\nb.py",
        "a\x1b.py",
        "\u202ea.py",
        "x" * 2000,
    ],
)
def test_any_other_path_is_none(file: str | None) -> None:
    assert place_at(file, 3) is None


@pytest.mark.parametrize("line", [None, 0, -4, 2**70, MAX_LINE + 1])
def test_a_line_that_is_none_becomes_the_first(line: int | None) -> None:
    assert place_at("a.py", line) == Place("a.py", 1)


@pytest.mark.parametrize("of_part", [False, True])
def test_every_report_shows_the_line_to_cut_of_the_finding(make: Any, *, of_part: bool) -> None:
    holder = Holder("module", "app.H", "app.H[0]", (), "app/h.py", 7, None, "app/put.py", 31, "H.append(value)")
    found = make.finding(holder=holder)
    if of_part:
        parts = (Contribution("2 x bytes", 5), Contribution("3 x bytes", 4, holder=holder))
        found = make.finding(kind="host", metric="heap", tensors=(), holder=None, contributions=parts)
    report = make.report(make.test("tests/test_a.py::test_a", found))
    written = json.loads(render(report, "json"))["tests"][0]["findings"][0]
    assert written["edit"] == {"file": "app/put.py", "line": 31, "code": "H.append(value)"}
    assert "cut here, at app/put.py:31" in "\n".join(render_finding(found))
    assert "cut at app/put.py:31" in render_short(found)
    assert "<td><code>app/put.py:31</code></td>" in render(report, "markdown")
    assert "file=app/put.py,line=31" in render_annotations(report)[0]
    (result,) = json.loads(render(report, "sarif"))["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("app/put.py", 31)


def test_the_creating_line_comes_first_then_the_holder_then_the_test(make: Any) -> None:
    holder = Holder("module", "app.H", "app.H[0]", (), "app/h.py", 7)
    finding = make.finding(tensors=arrays("/usr/lib/x.py", "app/model.py", "app/other.py"), holder=holder)
    record = make.test("tests/test_a.py::test_a", finding, file="tests/test_a.py", line=11)
    assert places_of(finding, record) == [
        ("created", Place("app/model.py", 5)),
        ("held", Place("app/h.py", 7)),
        ("test", Place("tests/test_a.py", 11)),
    ]


def test_the_line_of_memory_that_is_no_tensors_counts_too(make: Any) -> None:
    part = Contribution("bytearray", 4, 1, Origin("app/buffers.py", 8, "f", ""))
    finding = make.finding(tensors=(), holder=None, contributions=(part,))
    assert places_of(finding, make.test("t.py::test_a"))[0] == ("created", Place("app/buffers.py", 8))


@pytest.mark.parametrize("nodeid", ["t.py::test_a[x/../y]", "t.py::C::test_a"])
def test_without_lines_the_tests_file_is_shown(make: Any, nodeid: str) -> None:
    finding = make.finding(tensors=arrays("../x.py"), holder=None)
    assert places_of(finding, make.test(nodeid, finding)) == [("test", Place("t.py", 1))]


def test_what_lies_outside_altogether_has_a_place_all_the_same(make: Any) -> None:
    finding = make.finding(tensors=arrays("/x.py"), holder=None)
    assert places_of(finding, make.test("../t.py::test_a", finding)) == [("test", LAST_RESORT)]
    fixture = FixtureRecord("model", "session", "", (finding,), "/site-packages/plugin.py", 4)
    assert places_of(finding, fixture) == [("fixture", LAST_RESORT)]


def test_a_fixtures_own_line(make: Any) -> None:
    finding = make.finding(tensors=(), holder=None)
    fixture = FixtureRecord("model", "module", "tests/test_a.py", (finding,), "tests/test_a.py", 4)
    assert places_of(finding, fixture) == [("fixture", Place("tests/test_a.py", 4))]


def test_a_rootdir_below_the_repositorys_root_is_put_before(make: Any) -> None:
    finding = make.finding(tensors=arrays("app/model.py"), holder=None)
    prefix = root_of(make.report(environment={"root": "services/ml"}))
    assert places_of(finding, make.test("t.py::test_a"), prefix)[0][1] == Place("services/ml/app/model.py", 5)
    assert place_of_known(KnownLeak("t.py::test_a", None, "growing", "cpu", 4, "00"), prefix).file == "services/ml/t.py"


@pytest.mark.parametrize("root", [None, 3, "", "..", "/etc", "a/../..", "a\nb"])
def test_a_root_that_is_none_is_left_out(make: Any, root: object) -> None:
    assert root_of(make.report(environment={"root": root})) == ""


def test_the_line_to_edit_comes_before_the_line_that_made_the_memory(make: Any) -> None:
    holder = Holder("module", "app.H", "app.H[0]", (), "app/h.py", 7, None, "app/loop.py", 40)
    finding = make.finding(tensors=arrays("app/model.py"), holder=holder)
    places = places_of(finding, make.test("t.py::test_a", finding))
    assert places[:3] == [
        ("edit", Place("app/loop.py", 40)),
        ("created", Place("app/model.py", 5)),
        ("held", Place("app/h.py", 7)),
    ]
    (result,) = json.loads(sarif.encode_report(make.report(make.test("t.py::test_a", finding))))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "app/loop.py"
    assert "snippet" not in result["locations"][0]["physicalLocation"]["region"]


def test_a_line_to_edit_outside_the_project_is_no_place(make: Any) -> None:
    holder = Holder("module", "app.H", "app.H[0]", (), None, None, None, "/usr/lib/python3/site-packages/x.py", 40)
    finding = make.finding(tensors=arrays("app/model.py"), holder=holder)
    assert places_of(finding, make.test("t.py::test_a", finding))[0] == ("created", Place("app/model.py", 5))

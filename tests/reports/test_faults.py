"""A finding, or a part of a report, that a fault of ours keeps from being shown costs itself alone."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.findings import Finding, FixtureRecord, Holder
from pytest_gpuleak.model.isolation import describe_error, isolated
from pytest_gpuleak.reports.json.read import read_report
from tests.support.formats import FORMATS, html_text, json_text, terminal_text, valid_json_text

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.model.records import RunReport


class Poison:
    """A value of which nothing can be asked."""

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("spoilt\n\x1b[31m")

    __getattribute__ = __str__ = __repr__ = __bool__ = __len__ = __iter__ = __eq__ = __hash__ = _refuse
    __int__ = __index__ = __float__ = __lt__ = __gt__ = __add__ = __radd__ = __neg__ = __format__ = _refuse


FIELDS = [field.name for field in dataclasses.fields(Finding) if field.name not in ("failed", "known")]


@pytest.fixture
def spoilt(make: Any, request: pytest.FixtureRequest) -> RunReport:
    """A report with a finding of a test and one of a fixture that are spoilt in one field, between others."""
    bad = make.finding(holder=Holder("module", "app.bad", "app.bad[0]"), fingerprint="00bad")
    bad = dataclasses.replace(bad, **{request.param: Poison()})
    good = make.finding(holder=Holder("module", "app.good", "app.good[0]"))
    report: RunReport = make.report(
        make.test("t.py::test_bad", bad),
        make.test("t.py::test_both", bad, good),
        fixtures=(FixtureRecord("model", "module", "t.py", (bad, make.finding())),),
    )
    return report


@pytest.mark.parametrize("spoilt", FIELDS, indirect=True)
@pytest.mark.parametrize("name", FORMATS)
def test_a_spoilt_finding_costs_its_own_line(spoilt: RunReport, name: str) -> None:
    text = FORMATS[name](spoilt).replace("%3A", ":")
    assert "t.py::test_bad" in text
    assert "app.good" in text
    assert "app.metrics.HISTORY" in text


@pytest.mark.parametrize("spoilt", FIELDS, indirect=True)
def test_the_json_report_keeps_the_other_findings_and_names_the_error(spoilt: RunReport, tmp_path: Path) -> None:
    text = valid_json_text(spoilt)
    (tmp_path / "report.json").write_text(text)
    read = read_report(tmp_path / "report.json")
    assert [len(test.findings) for test in read.tests] == [1, 2]
    (bad,) = read.tests[0].findings
    assert "could not be written (RuntimeError: spoilt\\n\\x1b[31m)" in bad.evidence[0]
    assert read.tests[1].findings[1] == spoilt.tests[1].findings[1]


@pytest.mark.parametrize("spoilt", ["holder"], indirect=True)
@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"json"}))
def test_the_line_names_the_test_and_the_error(spoilt: RunReport, name: str) -> None:
    text = FORMATS[name](spoilt).replace("&#x27;", "'")
    assert r"could not be shown (RuntimeError: spoilt\n\x1b[31m)" in text.replace("\\\\", "\\")


@pytest.mark.parametrize("kind", ["", "brand-new", "\x1b[31m"])
def test_a_kind_that_this_release_does_not_know_is_shown(make: Any, kind: Any) -> None:
    found = make.finding(kind=kind, holder=Holder(kind, "app.new", "app.new[0]"), other_holders=(Holder(kind, "", ""),))
    for name, render in FORMATS.items():
        text = render(make.report(make.test("t.py::test_a", found)))
        assert "app.new" in text, name
        assert "could not be shown" not in text, name


@pytest.mark.parametrize(
    "target",
    [
        "pytest_gpuleak.reports.html.view.find_all",
        "pytest_gpuleak.reports.html.view.find_culprits",
        "pytest_gpuleak.reports.html.view._headline",
        "pytest_gpuleak.reports.html.view._tiles",
        "pytest_gpuleak.reports.html.view._encode_tests",
        "pytest_gpuleak.reports.html.view.build_charts",
        "pytest_gpuleak.reports.html.view.encode_chart",
        "pytest_gpuleak.reports.html.view._choices",
        "pytest_gpuleak.reports.html.view._facts",
        "pytest_gpuleak.reports.html.rows._row",
    ],
)
def test_a_part_of_the_page_that_fails_is_named(make: Any, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    def fail(*_: object) -> Any:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(target, fail)
    memory = {"cuda:0": {"allocated_before": 1, "allocated_after": 2}}
    text = html_text(make.report(make.test("t.py::test_a", make.finding(), memory=memory)))
    assert "could not be shown (KeyError: 'a fault of ours')" in text
    assert "Written by pytest-gpuleak" in text


@pytest.mark.parametrize("name", ["count_of", "size", "breakable", "cut"])
def test_a_section_of_the_page_that_cannot_be_rendered_is_named(
    make: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from pytest_gpuleak.reports.html.page import _environment

    def fail(*_: object) -> Any:
        raise KeyError("a fault of ours")

    report = make.report(make.test("t.py::test_a", make.finding()), make.test("t.py::test_b", make.finding()))
    _environment.cache_clear()  # a template that was imported keeps the filters that it found
    monkeypatch.setitem(_environment().filters, name, fail)
    text = html_text(report)
    _environment.cache_clear()
    assert "KeyError: 'a fault of ours'" in text
    assert "Written by pytest-gpuleak" in text


def test_what_cannot_be_counted_takes_no_leak_along(make: Any) -> None:
    report = dataclasses.replace(make.report(make.test("t.py::test_a", make.finding())), summary={"leaked": Poison()})
    document = json.loads(json_text(report))
    assert document["summary"]["leaked"].startswith("could not be written (RuntimeError")
    for name in set(FORMATS) - {"json"}:
        if not name.startswith("terminal"):
            assert "app.metrics.HISTORY" in FORMATS[name](report), name


def test_a_record_that_is_spoilt_keeps_its_findings(make: Any) -> None:
    report = make.report(make.test("t.py::test_a", make.finding(), memory=Poison()), make.test("t.py::test_b"))
    first, second = json.loads(valid_json_text(report))["tests"]
    assert first["findings"][0]["holder"]["root"] == "app.metrics.HISTORY"
    assert first["faults"] == [r"its record could not be written whole (RuntimeError: spoilt\n\x1b[31m)"]
    assert second["nodeid"] == "t.py::test_b"


def test_what_a_part_gives_is_returned_and_what_ends_the_program_passes() -> None:
    assert isolated(lambda: 3, len) == 3
    for error in (KeyboardInterrupt, SystemExit):

        def end(error: type[BaseException] = error) -> int:
            raise error

        with pytest.raises(error):
            isolated(end, len)


def test_an_error_is_named_on_one_line() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise self

    assert describe_error(KeyError("kind\n")) == r"KeyError: 'kind\n'"
    assert describe_error(RecursionError()) == "RecursionError"
    assert describe_error(SilentError()) == "SilentError"
    assert describe_error(OSError(28, "No space left on device")) == "OSError: No space left on device"
    assert len(describe_error(ValueError("x" * 10**6))) == 300


def test_terminal_lines_of_a_title_that_fails(make: Any) -> None:
    report = make.report(make.test("t.py::test_a", make.finding(), worker=Poison()))
    text = terminal_text(report, 0)
    assert "LEAKED (a title that could not be shown: RuntimeError" in text
    assert "app.metrics.HISTORY" in text

"""Every report names the helper process that a finding was made in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.cli.output import render_report
from pytest_gpuleak.model.findings import HelperProcess
from pytest_gpuleak.reports.formats import render
from pytest_gpuleak.reports.github import render_annotations
from pytest_gpuleak.reports.html.rows import find_all
from pytest_gpuleak.reports.html.tree import find_culprits
from pytest_gpuleak.reports.terminal.findings import render_briefly
from pytest_gpuleak.reports.terminal.short_summary import render_short_summary
from pytest_gpuleak.session.report_record import properties_of

if TYPE_CHECKING:
    from tests.reports.conftest import Make

ENGINE = HelperProcess(4711, "EngineCore", "python -m engine", "server")
NAMED = "EngineCore (pid 4711, fixture 'server')"


@pytest.mark.parametrize("form", ["sarif", "markdown", "html", "gitlab"])
def test_the_text_of_a_finding_names_its_process(make: type[Make], form: str) -> None:
    text = render(make.report(make.test("t.py::test_stream", make.finding(process=ENGINE))), form)
    assert NAMED in text.replace("&#39;", "'").replace("&#x27;", "'").replace("&quot;", '"')


def test_programs_read_it_as_fields(make: type[Make]) -> None:
    report = make.report(make.test("t.py::test_stream", make.finding(process=ENGINE), make.finding(bytes=1)))
    fields = {"pid": 4711, "name": "EngineCore", "command": "python -m engine", "fixture": "server"}
    (test,) = json.loads(render(report, "json"))["tests"]
    assert [found["process"] for found in test["findings"]] == [fields, None]
    results = json.loads(render(report, "sarif"))["runs"][0]["results"]
    assert [result["properties"].get("process") for result in results] == [fields, None]
    assert [name for name, value in properties_of(report.tests[0]) if value == NAMED] == ["gpu_leak_process"]


def test_terminal_and_ci_say_who_in_which_process(make: type[Make]) -> None:
    here, there = make.test("t.py::test_a", make.finding()), make.test("t.py::test_b", make.finding(process=ENGINE))
    assert render_short_summary([there], ()) == [
        f"LEAKED t.py::test_b - 4.0 MiB held by app.metrics.HISTORY in {NAMED}"
    ]
    assert NAMED in "".join(render_annotations(make.report(there)))
    assert f"  process  {NAMED}" in render_briefly(make.finding(process=ENGINE))
    # The same global in two processes has two culprits.
    shown = "\n".join(render_report(make.report(here, there), 0))
    assert "in 2 tests" not in shown
    assert "on cuda:0 in EngineCore (pid" in shown
    kinds = [one.held_kind for one in find_culprits(find_all(make.report(here, there)))]
    assert kinds == ["module global", "module global in EngineCore"]

"""Every report rendered and taken apart by its own parser: what each test of all formats goes through."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema

from pytest_gpuleak.baseline.file import Baseline, dump_baseline
from pytest_gpuleak.reports import github, gitlab, markdown, sarif
from pytest_gpuleak.reports.html import page as html
from pytest_gpuleak.reports.json import write as json_report
from pytest_gpuleak.reports.terminal.baseline import render_stale
from pytest_gpuleak.reports.terminal.findings import render_short
from pytest_gpuleak.reports.terminal.section import render_codes, render_leaks
from pytest_gpuleak.reports.terminal.summary import render_dearest, render_summary, render_usage
from pytest_gpuleak.session import report_record
from tests.reports.test_html import Page
from tests.support.schema import check_schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.records import RunReport

_SARIF_SCHEMA = Path(__file__).with_name("sarif-schema-2.1.0.json")
_TAG = re.compile(r"<(/?)([a-z]+)>")
_ANNOTATION = re.compile(r"::(error|warning|notice) [^:]*::[^\r\n]*|gpu-leak: [^\r\n]*")


@functools.cache
def _sarif_validator() -> Any:
    return jsonschema.Draft7Validator(json.loads(_SARIF_SCHEMA.read_bytes()))


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def terminal_text(report: RunReport, verbosity: int) -> str:
    """What the end of a run prints; every line is one line, whatever it says."""
    lines = [
        *render_leaks(report, verbosity=verbosity, width=80),
        *render_codes(report),
        *render_usage(report, width=80),
        *render_dearest(report, width=80),
        *render_stale(report.stale, "leaks.toml", fails=True),
        render_summary(report.summary),
    ]
    assert all(line.isprintable() for line in lines)
    text = "\n".join(lines)
    text.encode("utf-8")
    return text


def json_text(report: RunReport) -> str:
    """The JSON report, strict and in ASCII."""
    text = json_report.encode_report(report)
    assert text.isascii()
    json.loads(text, parse_constant=_refuse)
    return text


def valid_json_text(report: RunReport) -> str:
    """As `json_text`, and of the schema."""
    text = json_text(report)
    check_schema(json.loads(text))
    return text


def html_text(report: RunReport) -> str:
    """The HTML report: each element is closed, in order, and the data for the script is JSON."""
    text = html.encode_report(report)
    text.encode("utf-8")
    page = Page(text)
    assert page.open == []
    rows = page.data["tests"]["rows"]
    assert len(rows) in (0, len(report.tests))
    assert all(mark[0] < len(rows) for chart in page.data["charts"] for mark in chart["marks"])
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    return page.text + page.raw_data


def _sarif_errors(document: object) -> list[Any]:
    """What is wrong with a SARIF log, by its schema."""
    return list(_sarif_validator().iter_errors(document))


def sarif_text(report: RunReport) -> str:
    """The SARIF report, of its schema."""
    text = sarif.encode_report(report)
    document = json.loads(text, parse_constant=_refuse)
    assert _sarif_errors(document) == []
    assert all(result["locations"] for result in document["runs"][0]["results"])
    return text


def markdown_text(report: RunReport) -> str:
    """The Markdown report: its HTML is closed, and it is below its limit."""
    text = markdown.encode_report(report)
    assert len(text.encode("utf-8")) <= markdown.MAX_BYTES
    opened: list[str] = []
    for end, tag in _TAG.findall(text):
        if not end:
            opened.append(tag)
        else:
            assert opened.pop() == tag
    assert opened == []
    return text


def gitlab_text(report: RunReport) -> str:
    """GitLab's report: a list of issues with all that GitLab asks for, and different fingerprints."""
    text = gitlab.encode_report(report)
    issues = json.loads(text, parse_constant=_refuse)
    for issue in issues:
        assert issue["description"]
        assert issue["check_name"]
        assert issue["severity"] in ("info", "major")
        assert issue["location"]["path"]
        assert issue["location"]["lines"]["begin"] >= 1
    fingerprints = [issue["fingerprint"] for issue in issues]
    assert len(fingerprints) == len(set(fingerprints))
    return text


def github_text(report: RunReport) -> str:
    """GitHub's annotations: few, and each one command on one line."""
    lines = github.render_annotations(report)
    assert len(lines) <= github.MAX_ANNOTATIONS + 2
    for line in lines:
        assert _ANNOTATION.fullmatch(line), line
    return "\n".join(lines)


def junit_text(report: RunReport) -> str:
    """The properties and the failures of all tests, written as pytest's JUnit report writes them."""
    root = ET.Element("testsuite")
    for test in report.tests:
        case = ET.SubElement(root, "testcase")
        for name, value in report_record.properties_of(test):
            ET.SubElement(case, "property", name=name, value=value)
        for found in test.findings:
            ET.SubElement(case, "failure").text = render_short(found)
    text = ET.tostring(root, encoding="unicode")
    ET.fromstring(text.encode("utf-8"))
    return text


def baseline_text(report: RunReport) -> str:
    """The stale entries as a baseline's file."""
    text = dump_baseline(Baseline(report.stale))
    entries = tomllib.loads(text).get("leak", [])
    assert len(entries) == len(report.stale)
    text.encode("utf-8")
    return text


FORMATS: dict[str, Callable[[RunReport], str]] = {
    "terminal -q": lambda report: terminal_text(report, -1),
    "terminal": lambda report: terminal_text(report, 0),
    "terminal -v": lambda report: terminal_text(report, 1),
    "json": json_text,
    "html": html_text,
    "sarif": sarif_text,
    "markdown": markdown_text,
    "gitlab": gitlab_text,
    "github": github_text,
}
"""Reports of a whole run: each is rendered and taken apart; the text is what a reader finds in it."""


def without_stale(report: RunReport) -> RunReport:
    """The report without what is stale."""
    return dataclasses.replace(report, stale=())

from __future__ import annotations

import json
import pathlib
import re
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import unquote

import jsonschema
import pytest

from pytest_gpuleak.model.findings import BaselineStatus, FindingKind, FixtureRecord, Holder, KnownLeak
from pytest_gpuleak.model.source_files import Origin
from pytest_gpuleak.reports import formats, sarif
from pytest_gpuleak.reports.rules import RULES, rule_id
from pytest_gpuleak.reports.terminal.findings import render_short
from tests.support.hostile import TEXTS, hostile_report

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.model.records import RunReport

Json = dict[str, Any]


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft4Validator:
    """The schema as its authors publish it, from the npm package @microsoft/jest-sarif (MIT)."""
    file = pathlib.Path(__file__).parents[1] / "support" / "sarif-schema-2.1.0.json"
    return jsonschema.Draft4Validator(json.loads(file.read_text(encoding="utf-8")))


@pytest.fixture
def run_of(validator: jsonschema.Draft4Validator) -> Any:
    """Encodes a report, validates it and returns its one run."""

    def encode(report: RunReport) -> Json:
        text = sarif.encode_report(report)
        assert text.isascii()
        document = json.loads(text, parse_constant=pytest.fail)
        validator.validate(document)
        (run,) = document["runs"]
        assert isinstance(run, dict)
        for result in run["results"]:  # what GitHub refuses a file for
            region = result["locations"][0]["physicalLocation"]["region"]
            assert region["startLine"] >= 1
            assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        return run

    return encode


def test_an_empty_report_is_valid(make: Any, run_of: Any) -> None:
    run = run_of(make.report())
    assert run["results"] == []
    assert run["invocations"][0]["executionSuccessful"] is True
    assert run["invocations"][0]["endTimeUtc"] == "2026-11-20T19:17:00Z"


def test_each_kind_has_a_rule_with_help(make: Any, run_of: Any) -> None:
    rules = {rule["id"]: rule for rule in run_of(make.report())["tool"]["driver"]["rules"]}
    assert set(rules) == {*map(rule_id, get_args(FindingKind)), "gpu-leak/stale"}
    assert len(rules) == len(RULES)
    for rule in rules.values():
        assert rule["help"]["markdown"]
        assert len(rule["shortDescription"]["text"]) < 1024
        assert len(rule["properties"]["tags"]) <= 20


def test_a_leak_is_an_error_at_its_creating_line(make: Any, run_of: Any) -> None:
    holder = Holder("module", "app.metrics.HISTORY", "app.metrics.HISTORY[0]", (), "app/metrics.py", 3)
    finding = make.finding(holder=holder)
    (result,) = run_of(make.report(make.test("tests/test_a.py::test_a[0]", finding)))["results"]
    assert (result["ruleId"], result["level"]) == ("gpu-leak/growing", "error")
    assert result["message"]["text"] == f"{render_short(finding)}\nleft by tests/test_a.py::test_a[0]"
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "app/model.py", "uriBaseId": "SRCROOT"},
        "region": {"startLine": 14, "snippet": {"text": "self.meter.update(y.detach())"}},
    }
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "tests/test_a.py::test_a[0]"
    related = [place["physicalLocation"]["artifactLocation"]["uri"] for place in result["relatedLocations"]]
    assert related == ["app/metrics.py", "tests/test_a.py"]
    assert "baselineState" not in result


def test_a_code_is_a_taxon_with_the_page_as_help(make: Any, run_of: Any) -> None:
    findings = [make.finding(code="GL101"), make.finding(kind="host"), make.finding(code="GL999")]
    found = run_of(make.report(*[make.test(f"t.py::test_{at}", finding) for at, finding in enumerate(findings)]))
    (taxonomy,) = found["taxonomies"]
    assert [taxon["id"] for taxon in taxonomy["taxa"]] == ["GL006", "GL101"]
    assert "lru_cache" in taxonomy["taxa"][1]["help"]["markdown"]
    assert [result.get("taxa", [{}])[0].get("id") for result in found["results"]] == ["GL101", "GL006", None]
    assert [result["properties"]["code"] for result in found["results"]] == ["GL101", "GL006", "GL999"]
    rules = {rule["id"]: rule for rule in found["tool"]["driver"]["rules"]}
    assert "`gpuleak explain GL006`" in rules["gpu-leak/host"]["help"]["markdown"]


def test_the_way_to_the_memory_is_a_graph(make: Any, run_of: Any) -> None:
    (result,) = run_of(make.report(make.test("t.py::test_a", make.finding())))["results"]
    (graph,) = result["graphs"]
    assert [node["label"]["text"] for node in graph["nodes"]] == ["app.metrics.HISTORY", "the memory"]
    assert [edge["label"]["text"] for edge in graph["edges"]] == ["[0]"]


def test_a_note_is_a_note(make: Any, run_of: Any) -> None:
    (result,) = run_of(make.report(make.test("t.py::test_a", make.finding(failed=False, kind="cycle"))))["results"]
    assert (result["ruleId"], result["level"]) == ("gpu-leak/cycle", "note")
    assert "suppressions" not in result


def test_what_is_allowed_is_suppressed_in_source(make: Any, run_of: Any) -> None:
    record = make.test("t.py::test_a", make.finding(failed=False), verdict="allowed", allowed="it is slow to build")
    (result,) = run_of(make.report(record))["results"]
    assert result["suppressions"] == [{"kind": "inSource", "justification": "it is slow to build"}]


@pytest.mark.parametrize(
    ("status", "known", "state"),
    [
        (BaselineStatus("known", "the vendor's cache"), True, "unchanged"),
        (BaselineStatus("grown", "8.0 MiB"), False, "updated"),
        (BaselineStatus("new", "not listed"), False, "new"),
    ],
)
def test_how_a_finding_compares_with_the_baseline(
    make: Any, run_of: Any, status: BaselineStatus, known: bool, state: str
) -> None:
    finding = make.finding(known=known, failed=not known, evidence=("figures",), baseline=status)
    (result,) = run_of(make.report(make.test("t.py::test_a", finding)))["results"]
    assert result["baselineState"] == state
    assert result["level"] == ("note" if known else "error")
    reasons = [suppression["justification"] for suppression in result.get("suppressions", ())]
    assert reasons == (["the vendor's cache"] if known else [])
    assert ("8.0 MiB" in result["message"]["text"]) == (state == "updated")


def test_an_entry_that_is_gone_is_absent(make: Any, run_of: Any) -> None:
    entry = KnownLeak("tests/test_a.py::test_a", None, "growing", "cuda", 4096, "00aa", "app.H[0]", "old")
    (result,) = run_of(make.report(stale=(entry,)))["results"]
    assert (result["ruleId"], result["baselineState"], result["level"]) == ("gpu-leak/stale", "absent", "note")
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "tests/test_a.py"
    assert "remove the entry" in result["message"]["text"]


def test_an_incomplete_run_was_not_successful_and_says_why(make: Any, run_of: Any) -> None:
    (invocation,) = run_of(make.report(incomplete="the worker gw1 died", created=""))["invocations"]
    assert invocation["executionSuccessful"] is False
    assert "the worker gw1 died" in invocation["toolExecutionNotifications"][0]["message"]["text"]


def test_fingerprints_tell_tests_apart_and_survive_other_cards_and_lines(make: Any, run_of: Any) -> None:
    def prints(*findings: Any) -> list[str]:
        records = [make.test(f"t.py::test_{index}", found) for index, found in enumerate(findings)]
        return [result["partialFingerprints"]["gpuLeak/v1"] for result in run_of(make.report(*records))["results"]]

    here, there = make.finding(), make.finding(device="cuda:3", bytes=1, tensors=())
    assert prints(here, here) == prints(there, there)
    assert len(set(prints(here, here))) == 2


def test_of_too_many_the_failing_ones_stay_and_the_cut_is_stated(
    make: Any, run_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sarif, "MAX_RESULTS", 3)
    notes = [make.test(f"t.py::test_{index}", make.finding(failed=False)) for index in range(4)]
    run = run_of(make.report(*notes, make.test("t.py::test_leak", make.finding())))
    assert [result["level"] for result in run["results"]] == ["error", "note", "note"]
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notification["message"]["text"].startswith("2 more results are left out")


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("app/a b#c?d%e.py", "app/a%20b%23c%3Fd%25e.py"),
        ("größe.py", "gr%C3%B6%C3%9Fe.py"),
        ("http:x/y.py", "http%3Ax/y.py"),
        ("/etc/passwd", "t.py"),
        ("app/../../secret.py", "t.py"),
        ("C:\\Users\\x.py", "t.py"),
    ],
)
def test_uris_are_escaped_and_stay_in_the_repository(make: Any, run_of: Any, file: str, uri: str) -> None:
    array = make.finding().tensors[0]
    array = type(array)(**{**vars(array), "created": Origin(file, 2, "f", "")})
    finding = make.finding(tensors=(array,), holder=None)
    (result,) = run_of(make.report(make.test("t.py::test_a", finding)))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_a_fixture_is_named_and_placed(make: Any, run_of: Any) -> None:
    fixture = FixtureRecord("model", "module", "tests/test_a.py", (make.finding(tensors=()),), "tests/test_a.py", 4)
    (result,) = run_of(make.report(fixtures=(fixture,)))["results"]
    assert result["message"]["text"].endswith("left by fixture 'model' of tests/test_a.py")
    assert result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "tests/test_a.py::model"


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_hostile_text_is_data(make: Any, run_of: Any, text: str) -> None:
    run = run_of(hostile_report(make, text))
    assert len(run["results"]) == 7

    def check(value: object, key: str = "") -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                check(item, "code" if key == "snippet" else name)  # a snippet is code, and no message
        elif isinstance(value, list):
            for item in value:
                check(item, key)
        elif isinstance(value, str):
            assert len(value) < 8000
            assert value.replace("\n", "").isprintable()
            if key == "uri":
                assert re.fullmatch(r"[A-Za-z0-9_.~/%-]+", value)
                assert not unquote(value).startswith("/")
                assert ".." not in unquote(value).split("/")
            if key == "text":
                assert not re.search(r"(?<!\\)\]\(", value)  # no link but one that is escaped
                assert not re.search(r"(?<!\{)\{(\{\{)*\d", value)  # no placeholder

    check(run)


def test_the_suffix_names_the_format(make: Any, tmp_path: Path) -> None:
    formats.write_report(make.report(), tmp_path / "leaks.sarif")
    assert json.loads((tmp_path / "leaks.sarif").read_bytes())["version"] == "2.1.0"

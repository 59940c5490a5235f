from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.findings import FixtureRecord
from pytest_gpuleak.reports import gitlab
from tests.support.hostile import TEXTS, hostile_report

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import RunReport


def issues_of(report: RunReport) -> list[dict[str, Any]]:
    text = gitlab.encode_report(report)
    assert text.isascii()
    issues = json.loads(text)
    assert isinstance(issues, list)
    for issue in issues:
        assert set(issue) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert issue["severity"] in ("info", "minor", "major", "critical", "blocker")
        assert issue["location"]["lines"]["begin"] >= 1
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)
    return issues


def test_leaks_and_known_ones_are_issues_and_notes_are_not(make: Any) -> None:
    tests = [
        make.test("t.py::test_leak", make.finding()),
        make.test("t.py::test_known", make.finding(failed=False, known=True)),
        make.test("t.py::test_note", make.finding(failed=False)),
    ]
    leak, known = issues_of(make.report(*tests))
    assert (leak["severity"], known["severity"]) == ("major", "info")
    assert leak["check_name"] == "gpu-leak/growing"
    assert leak["location"] == {"path": "app/model.py", "lines": {"begin": 14}}
    assert leak["description"].endswith("held by app.metrics.HISTORY[0]  (module global); left by t.py::test_leak")
    assert known["description"].endswith("t.py::test_known (known)")


def test_the_same_leak_has_the_same_fingerprint_on_another_branch(make: Any) -> None:
    (before,) = issues_of(make.report(make.test("t.py::test_a", make.finding())))
    other = make.finding(device="cuda:5", bytes=3, tensors=())
    (after,) = issues_of(make.report(make.test("t.py::test_a", other)))
    (elsewhere,) = issues_of(make.report(make.test("t.py::test_b", other)))
    assert before["fingerprint"] == after["fingerprint"] != elsewhere["fingerprint"]


def test_fingerprints_are_unique_among_attempts_and_fixtures(make: Any) -> None:
    fixtures = tuple(FixtureRecord("model", "module", "t.py", (make.finding(),)) for _ in range(2))
    tests = [make.test("t.py::test_a", make.finding(), make.finding(device="cuda:1")) for _ in range(3)]
    assert len(issues_of(make.report(*tests, fixtures=fixtures))) == 8


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_hostile_text_is_data(make: Any, text: str) -> None:
    issues = issues_of(hostile_report(make, text))
    assert len(issues) == 4
    for issue in issues:
        assert issue["description"].isprintable()
        assert len(issue["description"]) < 3000
        assert ".." not in issue["location"]["path"].split("/")
        assert not issue["location"]["path"].startswith("/")


def test_an_empty_list_where_nothing_leaked(make: Any) -> None:
    assert gitlab.encode_report(make.report()) == "[]\n"

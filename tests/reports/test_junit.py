"""Properties of a test in JUnit's XML: which there are, and that pytest writes them, also from xdist's workers."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.findings import Holder
from pytest_gpuleak.session.report_record import MAX_LISTED, note_properties, properties_of
from tests.support.hostile import TEXTS, hostile_finding

if TYPE_CHECKING:
    import pathlib

    from tests.conftest import Runner


def test_a_leak_has_its_verdict_bytes_holder_and_fingerprint(make: Any) -> None:
    other = make.finding(holder=Holder("class", "app.Model", "app.Model.cache"), bytes=100, fingerprint="00bb")
    note = make.finding(failed=False, fingerprint="00cc")
    assert properties_of(make.test("t.py::test_a", make.finding(), other, note)) == [
        ("gpu_leak_verdict", "leaked"),
        ("gpu_leak_bytes", str(4 * 1024 * 1024 + 100)),
        ("gpu_leak_holder", "app.metrics.HISTORY[0]"),
        ("gpu_leak_fingerprint", "00aa"),
        ("gpu_leak_holder", "app.Model.cache"),
        ("gpu_leak_fingerprint", "00bb"),
    ]


def test_a_clean_test_and_a_mere_note_have_none(make: Any) -> None:
    assert properties_of(make.test("t.py::test_a")) == []
    assert properties_of(make.test("t.py::test_a", make.finding(failed=False))) == []


def test_what_is_known_or_allowed_is_told(make: Any) -> None:
    known = make.test("t.py::test_a", make.finding(failed=False, known=True))
    allowed = make.test("t.py::test_a", make.finding(failed=False), verdict="allowed", allowed="why")
    assert properties_of(known)[0] == ("gpu_leak_verdict", "noted")
    assert properties_of(allowed)[0] == ("gpu_leak_verdict", "allowed")


def test_many_findings_list_the_first(make: Any) -> None:
    properties = properties_of(make.test("t.py::test_a", *[make.finding()] * 50))
    assert len(properties) == 2 + 2 * MAX_LISTED


def test_pytests_report_carries_them_and_the_tests_own(make: Any) -> None:
    own = [("mine", "1")]
    report = pytest.TestReport(
        "t.py::test_a", ("t.py", 0, "test_a"), {}, "passed", None, "teardown", user_properties=own
    )
    note_properties(report, make.test("t.py::test_a", make.finding()))
    assert report.user_properties[:2] == [("mine", "1"), ("gpu_leak_verdict", "leaked")]
    assert own == [("mine", "1")]


def read(path: pathlib.Path) -> dict[str, list[tuple[str, str]]]:
    cases = ElementTree.parse(path).getroot().iter("testcase")
    return {
        str(case.get("name")): [(str(one.get("name")), str(one.get("value"))) for one in case.iter("property")]
        for case in cases
    }


@pytest.mark.parametrize("options", [("-o", "junit_family=xunit1"), ("-o", "junit_family=xunit2", "-n1")])
def test_pytest_writes_them(run: Runner, pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    found = run(
        """
        KEPT = {}
        def test_leaks(record_property):
            record_property("mine", "1")
            KEPT["]]><a>\\x00\\x1b[31m%s" % len(KEPT)] = Buffer(100)
        def test_clean():
            pass
        """,
        "--junitxml=junit.xml",
        "-Wignore",
        *options,
    )
    finding = found.finding("test_leaks")
    properties = read(pytester.path / "junit.xml")
    assert properties["test_clean"] == []
    assert properties["test_leaks"] == [
        ("mine", "1"),
        ("gpu_leak_verdict", "leaked"),
        ("gpu_leak_bytes", str(finding["bytes"])),
        ("gpu_leak_holder", finding["holder"]["text"]),
        ("gpu_leak_fingerprint", finding["fingerprint"]),
    ]
    assert "]]><a>" in finding["holder"]["text"]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_hostile_text_is_one_printable_line(make: Any, text: str) -> None:
    for name, value in properties_of(make.test(text, hostile_finding(make, text))):
        assert name.isidentifier()
        assert value.isprintable()
        assert len(value) <= 300

"""Reading reports back: what is written is read, and whatever else is given gets one clear line."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.finding_codec import decode_finding, encode_finding
from pytest_gpuleak.model.findings import Autograd, BaselineStatus, FixtureRecord, KnownLeak
from pytest_gpuleak.reports.json import read as reading
from pytest_gpuleak.reports.json.read import ACCEPTED, UnusableReport, read_report
from pytest_gpuleak.reports.json.write import encode_report

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.model.records import RunReport
    from tests.reports.conftest import Make


def document(make: type[Make]) -> dict[str, Any]:
    """A report with something of everything, as plain values."""
    other = make.finding().holder
    finding = make.finding(
        autograd=Autograd(1, 2, 3), hint="let go", other_holders=(other,), evidence=("+4 MiB",), metric="heap"
    )
    fixture = FixtureRecord("model", "module", "t/test_a.py", (make.finding(),))
    test = make.test("t/test_a.py::test_x", finding, memory={"cuda:0": {"peak": 5}}, file="t/test_a.py", line=3)
    stale = KnownLeak("t/test_a.py::test_y", None, "growing", "cuda", 5, "aa")
    report = make.report(test, make.test("t/test_a.py::test_y"), fixtures=(fixture,), stale=(stale,))
    found: dict[str, Any] = json.loads(encode_report(report))
    return found


def read(tmp_path: Path, content: object) -> RunReport:
    path = tmp_path / "report.json"
    data = (
        content
        if isinstance(content, bytes)
        else (content if isinstance(content, str) else json.dumps(content)).encode()
    )
    path.write_bytes(data)
    return read_report(path)


def refusal(tmp_path: Path, content: object) -> str:
    with pytest.raises(UnusableReport) as caught:
        read(tmp_path, content)
    line = str(caught.value)
    assert line.isprintable(), "one line, and nothing in it that a terminal obeys"
    assert line.startswith(str(tmp_path))
    assert line.endswith(ACCEPTED)
    return line


@pytest.mark.parametrize("state", ["known", "grown", "new"])
def test_the_baselines_line_of_the_evidence_is_read_as_a_field(tmp_path: Path, make: type[Make], state: Any) -> None:
    status = BaselineStatus(state, "waits for 2.1")
    finding = make.finding(evidence=("+4 MiB",), baseline=status)
    text = encode_report(make.report(make.test("t.py::test_a", finding)))
    (written,) = json.loads(text)["tests"][0]["findings"]
    assert written["evidence"] == [f"{state} (baseline): waits for 2.1", "+4 MiB"]
    assert "baseline" not in written
    (found,) = read(tmp_path, text).tests[0].findings
    assert (found.baseline, found.evidence) == (status, ("+4 MiB",))
    assert decode_finding(encode_finding(finding)) == finding


def test_what_is_written_is_read(make: type[Make], tmp_path: Path) -> None:
    written = document(make)
    report = read(tmp_path, written)
    assert json.loads(encode_report(report))["tests"] == written["tests"]
    assert json.loads(encode_report(report))["fixtures"] == written["fixtures"]
    assert json.loads(encode_report(report))["stale"] == written["stale"]
    assert report.summary["leaked"] == 1
    assert report.incomplete is None


def test_standard_input(make: type[Make], monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"\xef\xbb\xbf" + encode_report(make.report(make.test("a"))).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert [test.nodeid for test in read_report("-").tests] == ["a"]


def test_what_earlier_releases_did_not_write_takes_its_default(make: type[Make], tmp_path: Path) -> None:
    old = document(make)
    del old["stale"], old["incomplete"], old["environment"], old["policy"], old["summary"]
    for test in old["tests"]:
        del test["file"], test["line"], test["allowed"], test["memory"]
        for finding in test["findings"]:
            del finding["other_holders"], finding["evidence"], finding["contributions"], finding["metric"]
    report = read(tmp_path, old)
    assert (report.stale, report.incomplete, report.tests[0].file) == ((), None, None)
    assert report.summary["tests"] == 2


def test_keys_that_this_release_does_not_know_are_ignored(make: type[Make], tmp_path: Path) -> None:
    new = document(make)
    new["tomorrow"] = new["tests"][0]["tomorrow"] = new["tests"][0]["findings"][0]["tomorrow"] = {"a": 1}
    assert read(tmp_path, new).tests == read(tmp_path, document(make)).tests


def test_counts_are_those_of_the_records(make: type[Make], tmp_path: Path) -> None:
    lying = document(make)
    lying["summary"].update(leaked=0, clean=10**6, overhead_s="none", tests=[])
    summary = read(tmp_path, lying).summary
    assert (summary["tests"], summary["leaked"], summary["clean"]) == (2, 1, 1)


def test_seconds_that_could_not_be_measured(make: type[Make], tmp_path: Path) -> None:
    report = document(make)
    report["tests"][0]["duration_s"] = None
    assert read(tmp_path, report).tests[0].duration_s == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe{\x00}\x00", "is no text in UTF-8 (at byte 0)"),
        (b'{"a": "\xe9"}', "is no text in UTF-8 (at byte 7)"),
        ("no JSON", "is no JSON (line 1, column 1"),
        ("[]", "it is a list"),
        ('"text\\u001b[31m"', "it is 'text\\x1b[31m'"),
        ("7", "it is 7"),
        ("null", "it is null"),
        ("{}", "no report of pytest-gpuleak: it has no schema"),
        ('{"schema": 7}', "the schema 7"),
        ('{"schema": "https://json.schemastore.org/sarif-2.1.0.json"}', "the schema 'https://json.schemastore"),
        (
            '{"schema": "pytest-gpuleak/report/2"}',
            "written by a newer version of pytest-gpuleak (version 2 of the format)",
        ),
        ('{"schema": "pytest-gpuleak/report/1"}', "tests is missing"),
        ('{"schema": "pytest-gpuleak/report/1", "schema": "x"}', "has the key 'schema' twice"),
        (
            '{"schema": "pytest-gpuleak/report/1", "policy": {"a\\u001b": 1, "a\\u001b": 1}}',
            "has the key 'a\\x1b' twice",
        ),
        ('{"schema": NaN}', "holds NaN"),
        ('{"schema": -Infinity}', "holds -Infinity"),
        ('{"schema": ' + "9" * 5000 + "}", "more than 64 bits"),
        (
            '{"schema": "pytest-gpuleak/report/1", "tests": [], "fixtures": [], "summary": {"a": 1e999}}',
            "summary.a is inf",
        ),
        ("[" * 100_000, "is nested too deep"),
        ('{"schema": "pytest-gpuleak/report/1", "created"', "breaks off in the middle: it is truncated"),
    ],
)
def test_what_is_no_report(content: bytes | str, said: str, tmp_path: Path) -> None:
    assert said in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("tests", {}, "tests is an object, which is not a list"),
        ("tests.0", None, "tests[0] is null, which is not an object"),
        ("tests.1.nodeid", 7, "tests[1].nodeid is 7, which is not text"),
        ("tests.1.verdict", "fine", "tests[1].verdict is 'fine', which is not one of clean, leaked, noted"),
        ("tests.1.verdict", ["clean"], "tests[1].verdict is a list, which is not one of"),
        ("tests.0.line", 0, "tests[0].line is 0, which is not a number from 1"),
        ("tests.0.line", True, "tests[0].line is true, which is not a whole number"),
        ("tests.0.duration_s", "1", "tests[0].duration_s is '1', which is not a number"),
        ("tests.0.duration_s", 1e999, "holds Infinity"),
        ("tests.0.memory", [], "tests[0].memory is a list, which is not an object"),
        ("tests.0.memory.cuda:0.peak", 2**70, "tests[0].memory.cuda:0.peak is a number of more than 64 bits"),
        ("tests.0.memory.cuda:0.peak", 1.5, "tests[0].memory.cuda:0.peak is 1.5, which is not a whole number"),
        ("tests.0.findings.0.bytes", -1, "findings[0].bytes is -1, which is not a number from 0"),
        ("tests.0.findings.0.failed", 1, "findings[0].failed is 1, which is not true or false"),
        ("tests.0.findings.0.fingerprint", "<b>", "which is not a fingerprint"),
        ("tests.0.findings.0.tensors.0.shape", [1, -2], "tensors[0].shape[1] is -2"),
        ("tests.0.findings.0.tensors.0.created.line", "14", "tensors[0].created.line is '14'"),
        ("tests.0.findings.0.holder.path.0", "[0]", "holder.path[0] is '[0]', which is not an object"),
        ("tests.0.findings.0.holder.kind", "\x1b]0;x\x07", "holder.kind is '\\x1b]0;x\\x07', which is not one of"),
        ("fixtures.0.scope", "galaxy", "fixtures[0].scope is 'galaxy', which is not one of function, class"),
        ("stale.0.bytes", None, "stale[0].bytes is null"),
        ("incomplete", 7, "incomplete is 7, which is not text or null"),
        ("created", "yesterday", "created is 'yesterday', which is not a time"),
        ("created", None, "created is null"),
        ("environment", 1, "environment is 1"),
        ("environment.torch", 2**70, "environment.torch is a number of more than 64 bits"),
        ("policy", "strict", "policy is 'strict'"),
        ("policy.deep", json.loads("[" * 60 + "]" * 60), "is nested too deep: more than 50 levels"),
        ("summary", [], "summary is a list"),
        ("summary.known", "all", "summary.known is 'all', which is not a whole number"),
        ("summary.memory", {"heaviest": [7]}, "summary.memory.heaviest[0] is 7"),
        ("summary.memory", {"drift": {"cpu": 7}}, "summary.memory.drift.cpu is 7"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(
    make: type[Make], path: str, value: object, said: str, tmp_path: Path
) -> None:
    report = document(make)
    place: Any = report
    *steps, last = path.split(".")
    for step in steps:
        place = place[int(step) if isinstance(place, list) else step]
    place[int(last) if isinstance(place, list) else last] = value
    assert said in refusal(tmp_path, report)


def test_missing_folder_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnusableReport, match=r"nothing\.json does not exist"):
        read_report(tmp_path / "nothing.json")
    with pytest.raises(UnusableReport, match="is a folder"):
        read_report(tmp_path)
    with pytest.raises(UnusableReport, match=r"cannot be read \(File name too long\)"):
        read_report(tmp_path / ("x" * 300))
    with pytest.raises(UnusableReport, match="cannot be read"):
        read_report(tmp_path / "a\0b")
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    with pytest.raises(UnusableReport, match="cannot be read"):
        read_report(loop)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not bind root")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.json"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(UnusableReport, match="Permission denied"):
        read_report(path)


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 1024**2)
    assert "is larger than 1 MiB" in refusal(tmp_path, b"{" + b" " * 1024**2)


def test_a_report_that_is_cut_anywhere_is_refused(make: type[Make], tmp_path: Path) -> None:
    text = encode_report(make.report(make.test("a", make.finding())))
    for length in range(1, len(text) - 2, 97):
        refusal(tmp_path, text[:length])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a FIFO")
def test_paths_in_a_report_are_not_opened(make: type[Make], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    os.mkfifo(secret)  # whoever opened it would wait for ever
    report = document(make)
    report["tests"][0]["file"] = f"../{tmp_path.name}/secret"
    report["tests"][0]["findings"][0]["tensors"][0]["created"]["file"] = str(secret)
    assert read(tmp_path, report).tests[0].file == f"../{tmp_path.name}/secret"

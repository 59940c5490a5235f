from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
import sys
from typing import TYPE_CHECKING, Any, get_args

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.model import findings, peak_parts, source_files
from pytest_gpuleak.model import records as run_records
from pytest_gpuleak.model.finding_codec import decode_finding, encode_finding
from pytest_gpuleak.model.findings import Autograd, FixtureRecord
from pytest_gpuleak.reports import formats
from pytest_gpuleak.reports.formats import write_report
from pytest_gpuleak.reports.json.write import MAX_TEXT, encode_report, load_schema
from tests.support.schema import check_schema, validator

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.model.records import RunReport

posix = pytest.mark.skipif(sys.platform == "win32", reason="permissions are POSIX's")

COUNTS = st.integers(0, 2**62)
LINES = st.integers(1, 10**6)
SECONDS = st.floats(0, 1e9)
TEXTS = st.text(st.characters())
ORIGINS = st.builds(source_files.Origin, TEXTS, LINES, TEXTS, TEXTS)
ARRAYS = st.builds(
    findings.ArrayInfo, st.tuples(COUNTS, COUNTS) | st.just(()), TEXTS, TEXTS, COUNTS, COUNTS, st.none() | ORIGINS
)
HOLDERS = st.builds(
    findings.Holder,
    st.sampled_from(get_args(findings.HolderKind)),
    TEXTS,
    TEXTS,
    st.lists(st.builds(findings.PathStep, TEXTS, TEXTS), max_size=3).map(tuple),
    st.none() | TEXTS,
    st.none() | LINES,
)
PEAKS = st.builds(
    peak_parts.Peak,
    TEXTS,
    COUNTS,
    st.none()
    | st.builds(
        peak_parts.PeakMoment,
        st.none() | TEXTS,
        st.none() | LINES,
        TEXTS,
        st.sampled_from(get_args(peak_parts.PeakPhase)),
    ),
    st.lists(
        st.builds(
            peak_parts.PeakPart,
            st.sampled_from(get_args(peak_parts.PeakCategory)),
            TEXTS,
            COUNTS,
            COUNTS,
            shape=st.tuples(COUNTS, COUNTS) | st.just(()),
            created=st.none() | ORIGINS,
        ),
        max_size=2,
    ).map(tuple),
    COUNTS,
    lacks=st.lists(TEXTS, max_size=2).map(tuple),
    steps=st.lists(
        st.builds(
            peak_parts.PeakStep,
            COUNTS,
            st.sampled_from(get_args(peak_parts.PeakPhase)),
            st.none() | TEXTS,
            st.none() | LINES,
            st.dictionaries(TEXTS, COUNTS, max_size=2),
        ),
        max_size=2,
    ).map(tuple),
)
PROCESSES = st.builds(findings.HelperProcess, COUNTS, TEXTS, TEXTS, st.none() | TEXTS)
FINDINGS = st.builds(
    findings.Finding,
    kind=st.sampled_from(get_args(findings.FindingKind)),
    failed=st.booleans(),
    device=TEXTS,
    count=COUNTS,
    bytes=COUNTS,
    bytes_per_run=COUNTS,
    fingerprint=st.binary(min_size=1, max_size=8).map(bytes.hex),
    known=st.booleans(),
    tensors=st.lists(ARRAYS, max_size=2).map(tuple),
    holder=st.none() | HOLDERS,
    autograd=st.none() | st.builds(Autograd, COUNTS, COUNTS, COUNTS, st.booleans()),
    hint=st.none() | TEXTS,
    code=TEXTS,
    why_unconfirmed=st.none() | TEXTS,
    until_teardown=st.booleans(),
    provisional=st.booleans(),
    peak=st.none() | PEAKS,
    process=st.none() | PROCESSES,
    judged=st.none() | st.builds(findings.Judged, COUNTS, TEXTS, st.lists(TEXTS, max_size=2).map(tuple), TEXTS, TEXTS),
)
MANY = st.lists(FINDINGS, max_size=2).map(tuple)
VERDICTS = st.sampled_from(get_args(run_records.Verdict))


@st.composite
def attempts(draw: st.DrawFn) -> run_records.TestRecord:
    verdict = draw(VERDICTS)
    return run_records.TestRecord(
        nodeid=draw(TEXTS),
        verdict=verdict,
        why_unchecked=draw(TEXTS.filter(bool)) if verdict == "unchecked" else None,
        outcome=draw(st.sampled_from(get_args(run_records.Outcome))),
        worker=draw(st.sampled_from(["main", "gw0"])),
        duration_s=draw(SECONDS),
        overhead_s=draw(SECONDS),
        memory=draw(st.dictionaries(TEXTS, st.dictionaries(TEXTS, COUNTS, max_size=2), max_size=2)),
        findings=draw(MANY),
        allowed=draw(st.none() | TEXTS),
        peak=draw(st.none() | PEAKS),
    )


FIXTURES = st.builds(
    FixtureRecord,
    TEXTS,
    st.sampled_from(["class", "module", "package", "session"]),
    TEXTS,
    MANY,
    st.none() | TEXTS,
    st.none() | LINES,
    TEXTS,
    st.none() | TEXTS,
)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema())


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(records=st.lists(attempts(), max_size=2), fixtures=st.lists(FIXTURES, max_size=2))
def test_any_report_is_valid(
    make: Any,
    records: list[run_records.TestRecord],
    fixtures: list[FixtureRecord],
) -> None:
    text = encode_report(make.report(*records, fixtures=tuple(fixtures)))
    check_schema(json.loads(text, parse_constant=pytest.fail))
    assert text.isascii()


def test_names_of_the_contract(make: Any) -> None:
    fixture = FixtureRecord("model", "module", "tests/test_x.py", (make.finding(),))
    document = json.loads(encode_report(make.report(make.test("t.py::test_one", make.finding()), fixtures=(fixture,))))
    contract = ["schema", "created", "environment", "policy", "summary", "tests", "fixtures"]
    assert list(document) == [*contract, "stale", "incomplete", "faults"]
    assert document["schema"] == "pytest-gpuleak/report/1"
    assert document["tests"][0]["findings"][0]["holder"] == {
        "kind": "module",
        "root": "app.metrics.HISTORY",
        "text": "app.metrics.HISTORY[0]",
        "path": [{"edge": "[0]", "type": "list"}],
        "file": None,
        "line": None,
        "deciding": None,
        "edit_file": None,
        "edit_line": None,
        "edit_code": "",
    }
    assert document["tests"][0]["findings"][0]["edit"] is None
    assert document["tests"][0]["findings"][0]["tensors"][0]["shape"] == [1024, 1024]


def test_a_finding_has_a_code_by_default_that_of_its_kind(make: Any) -> None:
    plain, known = make.finding(kind="host"), make.finding(code="GL701")
    assert encode_finding(plain)["code"] == "GL006"
    assert dataclasses.replace(plain, kind="cycle").code == "GL004"
    assert dataclasses.replace(known, kind="cycle").code == "GL701"
    older = {name: value for name, value in encode_finding(plain).items() if name != "code"}
    assert decode_finding(older) == plain


def test_the_schema_knows_every_field() -> None:
    definitions = load_schema()["$defs"]
    for name, record in {
        "test": run_records.TestRecord,
        "fixture": FixtureRecord,
        "finding": findings.Finding,
        "array": findings.ArrayInfo,
        "origin": source_files.Origin,
        "holder": findings.Holder,
        "edit": source_files.Edit,
        "autograd": Autograd,
        "judged": findings.Judged,
        "peak": peak_parts.Peak,
        "peakMoment": peak_parts.PeakMoment,
        "peakPart": peak_parts.PeakPart,
        "peakStep": peak_parts.PeakStep,
        "knownLeak": findings.KnownLeak,
    }.items():
        fields = set(getattr(record, "_fields", None) or (field.name for field in dataclasses.fields(record)))
        if record is findings.Finding:
            fields.remove("baseline")  # a line of the evidence
            fields.add("edit")  # of its holders
        assert set(definitions[name]["properties"]) == fields, name
        assert set(definitions[name]["required"]) == fields, name
    assert definitions["finding"]["properties"]["kind"]["enum"] == list(get_args(findings.FindingKind))
    assert definitions["peakPart"]["properties"]["category"]["enum"] == list(get_args(peak_parts.PeakCategory))
    assert definitions["peakMoment"]["properties"]["phase"]["enum"] == list(get_args(peak_parts.PeakPhase))
    assert definitions["peakStep"]["properties"]["phase"]["enum"] == list(get_args(peak_parts.PeakPhase))
    assert definitions["peak"]["properties"]["parts"]["maxItems"] == peak_parts.MAX_ROWS
    assert definitions["peak"]["properties"]["steps"]["maxItems"] == peak_parts.MAX_STEPS
    assert definitions["finding"]["properties"]["tensors"]["maxItems"] == findings.MAX_ARRAYS_SHOWN
    assert definitions["test"]["properties"]["verdict"]["enum"] == list(get_args(run_records.Verdict))
    assert definitions["test"]["properties"]["outcome"]["enum"] == list(get_args(run_records.Outcome))
    assert definitions["holder"]["properties"]["kind"]["enum"] == list(get_args(findings.HolderKind))
    assert definitions["text"]["maxLength"] == MAX_TEXT


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: document.update(schema="pytest-gpuleak/report/2"),
        lambda document: document.update(more=1),
        lambda document: document.update(created="yesterday"),
        lambda document: document.pop("environment"),
        lambda document: document["summary"].pop("leaked"),
        lambda document: document["tests"][0].update(verdict="fine"),
        lambda document: document["tests"][0].update(why_unchecked="no reason to give one"),
        lambda document: document["tests"][0].update(verdict="unchecked"),
        lambda document: document["tests"][0]["findings"][0].update(bytes=-1),
        lambda document: document["tests"][0]["findings"][0].update(fingerprint="xyz"),
        lambda document: document["tests"][0]["findings"][0].pop("holder"),
    ],
)
def test_what_is_not_a_report_is_not_valid(make: Any, spoil: Any) -> None:
    document = json.loads(encode_report(make.report(make.test("t.py::test_one", make.finding()))))
    check_schema(document)
    spoil(document)
    assert not validator().is_valid(document)


def test_numbers_that_json_does_not_have_are_null(make: Any) -> None:
    record = make.test("t.py::test_one", duration_s=math.nan, overhead_s=math.inf)
    (test,) = json.loads(encode_report(make.report(record)))["tests"]
    assert test["duration_s"] is None
    assert test["overhead_s"] is None


def test_strings_are_cleaned_and_cut(make: Any) -> None:
    (test,) = json.loads(encode_report(make.report(make.test("\x1b[31m\n\ud800" + "x" * 5000))))["tests"]
    assert test["nodeid"].startswith(r"\x1b[31m\n\ud800xxx")
    assert len(test["nodeid"]) == MAX_TEXT


class TestWrite:
    @pytest.fixture
    def report(self, make: Any) -> RunReport:
        report: RunReport = make.report(make.test("t.py::test_größe"))
        return report

    def test_new_file(self, report: RunReport, tmp_path: Path) -> None:
        formats.write_report(report, tmp_path / "leaks.JSON")
        assert json.loads((tmp_path / "leaks.JSON").read_bytes())["tests"][0]["nodeid"] == "t.py::test_größe"
        assert [file.name for file in tmp_path.iterdir()] == ["leaks.JSON"]

    @posix
    @pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
    def test_a_new_file_obeys_the_umask(self, report: RunReport, tmp_path: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            write_report(report, tmp_path / "leaks.json")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "leaks.json").stat().st_mode) == 0o666 & ~umask

    @posix
    def test_an_old_file_keeps_its_permissions_and_a_link_its_name(self, report: RunReport, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        old = tmp_path / "real" / "old.json"
        old.write_text("{}", encoding="utf-8")
        old.chmod(0o604)
        link = tmp_path / "leaks.json"
        link.symlink_to(old)
        write_report(report, link)
        assert link.is_symlink()
        assert stat.S_IMODE(old.stat().st_mode) == 0o604
        assert "tests" in json.loads(old.read_bytes())

    def test_a_missing_folder_is_an_os_error(self, report: RunReport, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            write_report(report, tmp_path / "no" / "leaks.json")

    def test_the_longest_of_names(self, report: RunReport, tmp_path: Path) -> None:
        write_report(report, tmp_path / f"{'x' * 250}.json")

    def test_a_failure_leaves_the_old_file_and_nothing_else(
        self, report: RunReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "leaks.json"
        path.write_text("old", encoding="utf-8")

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("pathlib.Path.replace", fail)
        with pytest.raises(OSError, match="No space left"):
            write_report(report, path)
        assert path.read_text(encoding="utf-8") == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_folder_in_its_place_is_an_os_error(self, report: RunReport, tmp_path: Path) -> None:
        path = tmp_path / "leaks.json"
        path.mkdir()
        with pytest.raises(OSError, match=r".+"):
            write_report(report, path)
        assert list(tmp_path.iterdir()) == [path]

    def test_an_environment_of_objects_costs_its_keys_alone(self, make: Any, tmp_path: Path) -> None:
        write_report(make.report(environment={"torch": object(), "python": "3.11"}), tmp_path / "leaks.json")
        environment = json.loads((tmp_path / "leaks.json").read_bytes())["environment"]
        assert environment["torch"].startswith("could not be written (TypeError: ")
        assert environment["python"] == "3.11"

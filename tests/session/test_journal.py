"""The journal's file: valid at any moment, and what is read of one that was cut in the middle of a write."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.model.findings import FixtureRecord
from pytest_gpuleak.model.records import encode
from pytest_gpuleak.reports.json import journal as module
from pytest_gpuleak.reports.json.journal import NOT_ENDED, Journal, journal_path, recover
from pytest_gpuleak.reports.json.read import read_report
from pytest_gpuleak.reports.json.write import encode_report
from pytest_gpuleak.session.surroundings import Rank, path_of_rank, rank_of
from tests.reports.conftest import Make
from tests.support.schema import check_schema

HEAD = {key: getattr(Make.report(), key) for key in ("created", "environment", "policy")}
LEAK = encode(Make.test("t.py::test_leak", Make.finding()))
CLEAN = encode(Make.test("t.py::test_clean", memory={"cuda:0": {"peak": 5}}))
FIXTURE = encode(FixtureRecord("model", "module", "t.py", (Make.finding(),)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.json"


@pytest.fixture
def journal(path: Path) -> Journal:
    begun = Journal(path)
    begun.begin(HEAD)
    return begun


def read(path: Path) -> Any:
    document = json.loads(path.read_bytes(), parse_constant=pytest.fail)
    check_schema(document)
    return document


def names(document: Any) -> list[str]:
    return [test["nodeid"] for test in document["tests"]]


def test_it_is_a_report_at_any_moment(journal: Journal, path: Path) -> None:
    assert (read(path)["tests"], read(path)["incomplete"]) == ([], NOT_ENDED)
    journal.note_running(["t.py::test_leak"])
    assert read(path)["summary"]["running"] == ["t.py::test_leak"]
    journal.add_test(LEAK)
    assert read(path)["tests"] == json.loads(json.dumps([LEAK]))
    journal.set_fixtures([FIXTURE])
    journal.add_test(CLEAN)
    journal.add_test(CLEAN)
    document = read(path)
    assert names(document) == ["t.py::test_leak", "t.py::test_clean", "t.py::test_clean"]
    assert document["fixtures"][0]["name"] == "model"
    assert document["incomplete"] == NOT_ENDED
    counts = {"tests": 3, "clean": 2, "leaked": 1, "noted": 0, "fixtures_leaked": 1, "findings": 2, "duration_s": 1.5}
    assert {key: document["summary"][key] for key in counts} == counts
    assert read_report(path).incomplete


def test_each_record_stands_on_a_line_of_its_own(journal: Journal, path: Path) -> None:
    journal.add_test(LEAK)
    journal.add_test(CLEAN)
    _, first, second, tail, _ = path.read_text().split("\n")
    assert (json.loads(first), json.loads(second[1:])) == tuple(json.loads(json.dumps([LEAK, CLEAN])))
    assert tail.startswith("], ")


def test_a_tail_that_shrinks_leaves_nothing_of_the_longer_one(journal: Journal, path: Path) -> None:
    journal.note_running(["x" * 2000])
    journal.note_running([])
    assert read(path)["summary"]["running"] == []


@pytest.mark.parametrize("text", ["\x1b[31m\n", "</script>", "größe", 'quote " and \\', "\ud800", "x" * 5000, "\u202e"])
def test_strings_are_what_the_report_has(journal: Journal, path: Path, text: str) -> None:
    record = Make.test("t.py::" + text, why_unchecked=text, verdict="unchecked", memory={text: {text: 1}})
    journal.note_running([text])
    journal.add_test(encode(record))
    assert path.read_bytes().isascii()
    assert read(path)["tests"] == json.loads(encode_report(Make.report(record)))["tests"]


def test_numbers_that_json_does_not_have_are_null(journal: Journal, path: Path) -> None:
    journal.add_test(encode(Make.test("t.py::test_one", duration_s=math.nan, overhead_s=math.inf)))
    assert (read(path)["tests"][0]["duration_s"], read(path)["summary"]["overhead_s"]) == (None, 0)


def cuts(before: bytes, after: bytes, at: int) -> list[str]:
    """What stands in the file when the last write breaks off: after each number of its bytes."""
    return [(after[:end] + before[end:]).decode() for end in range(at, len(after))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=8)
@given(
    many=st.lists(st.sampled_from([CLEAN, LEAK]), max_size=1),
    last=st.text(max_size=9).map(lambda text: {**CLEAN, "nodeid": "t.py::" + text}),
    running=st.lists(st.sampled_from(["t.py::test_leak", "x" * 300]), max_size=2),
    fixtures=st.lists(st.just({**FIXTURE, "findings": []}), max_size=1),
)
def test_wherever_a_write_is_cut_every_test_that_had_ended_is_read(
    path: Path, many: list[Any], last: Any, running: list[str], fixtures: list[Any]
) -> None:
    journal = Journal(path)
    journal.begin(HEAD)
    for record in many:
        journal.add_test(record, running)
    before, at = path.read_bytes(), journal._tail_at
    journal.set_fixtures(fixtures)
    journal.add_test(last)
    after = path.read_bytes()
    journal.close()
    expected = json.loads(path.read_text())["tests"]
    for length, text in enumerate(cuts(before, after, at)):
        try:
            document = json.loads(text)
        except ValueError:
            document = recover(text)
        assert document is not None, length
        assert document["tests"] in (expected, expected[:-1]), length
        if length >= journal._tail_at - at:  # the last one is whole, too
            assert document["tests"] == expected, length
        assert document["incomplete"] == NOT_ENDED


def test_what_is_recovered_is_a_report(journal: Journal, path: Path) -> None:
    journal.add_test(LEAK)
    journal.set_fixtures([FIXTURE])
    journal.add_test(CLEAN)
    text = path.read_text()
    document = recover(text[: text.rindex(",{")] + ',{"nodeid": "t.py::te')
    assert document is not None
    check_schema(document)
    assert (names(document), document["fixtures"]) == (["t.py::test_leak"], [])
    document = recover(text + "rest of an older write")
    assert document is not None
    assert document["fixtures"] == json.loads(json.dumps([FIXTURE]))
    assert document["summary"]["fixtures_leaked"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": "pytest-gpuleak/report/1", "tests": [\n',
        '{"schema": "pytest-gpuleak/report/2", "created": "", "environment": {}, "policy": {}, "tests": [\n',
        '{"schema": "other", "tests": [\n{"nodeid"',
        '[{"tests": [\n',
        "[" * 100_000,
        encode_report(Make.report(Make.test("t.py::test_one")))[:-100],
    ],
)
def test_what_is_no_journal_is_not_recovered(text: str) -> None:
    assert recover(text) is None


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"nodeid": "t.py::test_foreign"}',
        json.dumps({**CLEAN, "verdict": "fine"}),
        json.dumps({**CLEAN, "verdict": []}),
        json.dumps({**CLEAN, "overhead_s": "1"}),
        json.dumps({**CLEAN, "findings": 1}),
        json.dumps({**CLEAN, "duration_s": math.nan}),
        json.dumps({**CLEAN, "more": 1}),
        json.dumps({**CLEAN, "line": 1}).replace('"line": 1', f'"line": {"9" * 5000}'),
        '], "fixtures": [1]}',
        '], "fixtures": [{"findings": [{}]}]}',
    ],
)
def test_a_hostile_line_ends_what_is_read(journal: Journal, path: Path, line: str) -> None:
    journal.add_test(LEAK)
    text = path.read_text()
    document = recover(text[: text.rindex("],")] + f",{line}\n,{json.dumps(CLEAN)}\n")
    assert document is not None
    assert (names(document), document["fixtures"]) == (["t.py::test_leak"], [])


class TestFiles:
    def test_an_older_report_gives_way_and_a_link_is_followed(self, tmp_path: Path) -> None:
        real, link = tmp_path / "real.json", tmp_path / "r.json"
        real.write_text("old")
        link.symlink_to(real)
        journal = Journal(link)
        journal.begin(HEAD)
        journal.add_test(CLEAN)
        assert link.is_symlink()
        assert names(read(real)) == ["t.py::test_clean"]
        journal.close()

    def test_of_two_runs_the_later_replaces_the_other_s(self, journal: Journal, path: Path) -> None:
        later = Journal(path)
        later.begin(HEAD)
        journal.add_test(LEAK)
        later.add_test(CLEAN)
        assert names(read(path)) == ["t.py::test_clean"]
        journal.remove()
        assert path.exists()
        later.close()
        later.remove()
        assert not path.exists()
        assert (journal.fault, later.fault) == (None, None)

    def test_a_full_disk_costs_the_journal_and_no_more(
        self, journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal.add_test(LEAK)
        calls = []

        def fill_up(_file: int, _data: bytes, _offset: int) -> None:
            calls.append(1)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module, "_write_at", fill_up)
        journal.add_test(CLEAN)
        journal.add_test(CLEAN)
        journal.note_running(["t.py::test_leak"])
        assert len(calls) == 1
        assert journal.fault is not None
        assert "r.json broke off: No space left on device" in journal.fault
        assert names(read(path)) == ["t.py::test_leak"]

    def test_a_write_in_parts_is_completed(self, journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        if not hasattr(os, "pwrite"):
            pytest.skip("there is no pwrite here")
        whole = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda file, data, offset: whole(file, data[:100], offset))
        journal.add_test(LEAK)
        assert names(read(path)) == ["t.py::test_leak"]

    def test_where_there_is_no_pwrite(self, journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "pwrite", raising=False)
        journal.add_test(LEAK)
        journal.add_test(CLEAN)
        assert names(read(path)) == ["t.py::test_leak", "t.py::test_clean"]

    def test_a_folder_that_is_missing(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path / "missing" / "r.json")
        journal.begin(HEAD)
        journal.add_test(CLEAN)
        journal.close()
        journal.remove()
        assert journal.fault is not None
        assert "No such file" in journal.fault

    @pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
    def test_a_folder_that_is_removed_is_no_fault(self, journal: Journal, path: Path) -> None:
        path.unlink()
        journal.add_test(CLEAN)
        assert (journal.fault, path.exists()) == (None, False)

    def test_another_file_with_the_number_of_one_that_a_test_closed_is_not_written(
        self, journal: Journal, path: Path, tmp_path: Path
    ) -> None:
        number = journal._file
        assert number is not None
        os.close(number)
        other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
        os.dup2(other, number)
        journal.add_test(CLEAN)
        assert (tmp_path / "other").read_bytes() == b""
        assert names(read(path)) == ["t.py::test_clean"]
        os.close(number)
        if other != number:
            os.close(other)

    def test_a_file_that_was_closed_and_replaced_ends_the_journal(self, journal: Journal, path: Path) -> None:
        assert journal._file is not None
        os.close(journal._file)
        path.rename(path.with_suffix(".old"))
        path.write_text("another's")
        journal.add_test(CLEAN)
        assert path.read_text() == "another's"
        assert journal.fault is not None

    def test_a_record_of_objects_ends_the_journal(self, journal: Journal, path: Path) -> None:
        journal.add_test({**CLEAN, "memory": {"cpu": object()}})
        assert journal.fault is not None
        assert "not JSON serializable" in journal.fault
        assert names(read(path)) == []

    def test_a_forked_process_writes_nothing(
        self, journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        process = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: process + 1)
        journal.add_test(LEAK)
        monkeypatch.undo()
        journal.add_test(CLEAN)
        assert names(read(path)) == ["t.py::test_clean"]


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        (["a.json"], "a.json"),
        (["a.html", "b.JSON", "c.json"], "b.JSON"),
        (["a.html", "b.md"], "a.html.partial.json"),
    ],
)
def test_where_the_journal_stands(reports: list[str], expected: str) -> None:
    assert journal_path([Path(name) for name in reports]) == Path(expected)


@pytest.mark.parametrize(
    ("rank", "world", "expected"),
    [("3", "8", Rank(3, 8)), ("0", "2", Rank(0, 2)), ("0", "1", None), ("8", "8", None), ("-1", "8", None)]
    + [(bad, "8", None) for bad in ("", "x", "1.0", "\u0663", "9" * 5000)]
    + [("1", bad, None) for bad in ("", "x", "0")],
)
def test_the_rank_of_a_process(rank: str, world: str, expected: Rank | None) -> None:
    assert rank_of({"RANK": rank, "WORLD_SIZE": world}) == expected
    assert rank_of({"RANK": rank}) is None


def test_the_path_of_a_rank() -> None:
    assert path_of_rank(Path("a/leaks.v1.json"), Rank(3, 8)) == Path("a/leaks.v1.rank3.json")
    assert path_of_rank(Path("leaks.HTML"), Rank(12, 16)) == Path("leaks.rank12.HTML")
    assert path_of_rank(Path("leaks.json"), None) == Path("leaks.json")

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.findings import BaselineStatus, Finding, FixtureRecord, Holder, KnownLeak
from pytest_gpuleak.reports import formats
from pytest_gpuleak.reports.markdown import MAX_BYTES, MIN_BYTES, encode_report
from tests.support.hostile import TEXTS, hostile_report

if TYPE_CHECKING:
    from pathlib import Path

BLOCKS = ("<p>", "<table>", "<details>")
TAGS = {"p", "b", "table", "tr", "th", "td", "code", "details", "summary", "pre", "ul", "li"}
QUIET = {"code", "pre"}


class Reader(HTMLParser):
    """Reads the HTML blocks of a page: which tags there are, and what text stands outside of code."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.loud = ""
        self.code: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.open.append(tag)
        self.tags.add(tag)
        if tag in QUIET:
            self.code.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if QUIET & set(self.open):
            self.code[-1] += data
        else:
            self.loud += data


def read(page: str) -> Reader:
    """Read a page as GitHub does: a block of HTML lasts until an empty line, and no Markdown is read in it."""
    reader = Reader()
    for block in re.split(r"\n[ \t]*\n", page.strip()):
        if block.startswith("<"):
            assert block.startswith(BLOCKS), block[:80]
            reader.feed(block)
            assert not reader.open, block[-200:]
        else:
            assert re.fullmatch(r"### [\w ,.]+|Cut to fit: [\w ;]+\. The JSON report has all\.", block), block
    assert reader.tags <= TAGS
    return reader


def test_a_clean_run(make: Any) -> None:
    page = encode_report(make.report(make.test("t.py::test_a")))
    assert page == "### No GPU memory leaks found\n\n<p>gpu-leak: 0 leaked, 1 clean; 21 us a clean test</p>\n"


def test_a_leak_has_a_row_and_its_explanation(make: Any) -> None:
    page = encode_report(make.report(make.test("t.py::test_a[x|y]", make.finding()), make.test("t.py::test_b")))
    reader = read(page)
    assert page.startswith("### 1 GPU memory leak, 4.0 MiB\n")
    row = ["cuda:0", "app.metrics.HISTORY[0]", "t.py::test_a[x|y]", "app/model.py:14"]
    assert reader.code[:4] == row
    assert "held by  app.metrics.HISTORY  (module global)\n             [0]: float32" in reader.code[-1]
    assert "created  app/model.py:14 in forward" in reader.code[-1]


def test_a_culprit_that_many_tests_met_is_explained_once(make: Any) -> None:
    page = encode_report(make.report(*(make.test(f"t.py::test_a[{index}]", make.finding()) for index in range(9))))
    reader = read(page)
    assert page.count("<tr><td>") == 1
    assert "36.0 MiB on " in reader.loud
    assert "9 tests, most by " in reader.loud
    assert page.count("<details>") == 1
    assert "36.0 MiB held by , left by 9 tests" in reader.loud
    assert reader.code[-1].startswith("  largest  t.py::test_a[0], 4.0 MiB\n")
    assert "t.py::test_a[3], 4.0 MiB\n           and 5 more" in reader.code[-1]


def test_the_largest_come_first_in_the_table_and_are_explained(make: Any) -> None:
    def held_by(root: str, size: int) -> Finding:
        finding: Finding = make.finding(bytes=size, holder=Holder("module", root, root))
        return finding

    tests = [make.test(f"t.py::test_{size}", held_by("app.A", size)) for size in (*range(150), 2**30)]
    reader = read(encode_report(make.report(make.test("t.py::test_b", held_by("app.B", 2**20)), *tests)))
    assert reader.code[:8] == [
        "cuda:0",
        "app.A",
        "t.py::test_1073741824",
        "app/model.py:14",
        "cuda:0",
        "app.B",
        "t.py::test_b",
        "app/model.py:14",
    ]
    assert "1.0 GiB held by , left by 151 tests" in reader.loud


def test_notes_are_counted_and_not_explained(make: Any) -> None:
    page = encode_report(make.report(make.test("t.py::test_a", make.finding(failed=False))))
    assert "1 noted" in page
    assert "<details>" not in page


def test_known_and_stale_leaks_are_counted_and_listed(make: Any) -> None:
    known = make.finding(failed=False, known=True, baseline=BaselineStatus("known", "the vendor's cache"))
    entry = KnownLeak("t.py::test_b", "model", "growing", "cuda", 4096, "00", "app.H[0]")
    page = encode_report(make.report(make.test("t.py::test_a", known), stale=(entry,)))
    reader = read(page)
    assert page.startswith("### No new GPU memory leaks found\n")
    assert "1 known leak\n" in reader.loud
    assert "1 leak of the baseline gone: remove the entries\n" in reader.loud
    assert "the vendor's cache" in reader.code
    assert "fixture 'model' of t.py::test_b" in reader.code


def test_an_incomplete_run_says_so_on_top(make: Any) -> None:
    page = encode_report(make.report(incomplete="the worker gw1 died"))
    assert page.startswith("### No GPU memory leaks found, but the run is incomplete\n")
    assert read(page).code == ["the worker gw1 died"]


def test_a_fixture_is_named(make: Any) -> None:
    fixture = FixtureRecord("model", "module", "tests/test_a.py", (make.finding(),))
    assert read(encode_report(make.report(fixtures=(fixture,)))).code[2] == "fixture 'model'"


@pytest.mark.parametrize("limit", [MIN_BYTES, 30_000, MAX_BYTES])
def test_a_page_is_cut_below_its_limit_and_says_so(make: Any, limit: int) -> None:
    tests = [
        make.test(f"t.py::test_{index}[{'ß' * 200}]", make.finding(holder=Holder("module", f"app.A{index}", "")))
        for index in range(1500)
    ]
    page = encode_report(make.report(*tests, incomplete="x" * 10_000), limit=limit)
    assert len(page.encode()) <= limit
    read(page)
    assert "Cut to fit: " in page
    assert "more holders not in the table" in page


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_hostile_text_is_data(make: Any, text: str) -> None:
    page = encode_report(hostile_report(make, text))
    reader = read(page)
    for sign in ("@", "http", "#123", "](", "::", "alert"):
        assert sign not in reader.loud
    assert page.replace("\n", "").isprintable()
    if len(text) < 100 and text.isprintable():
        assert text in reader.code  # as it was written, and once only escaped
    assert len(page.encode()) < 200_000


def test_the_suffix_names_the_format(make: Any, tmp_path: Path) -> None:
    formats.write_report(make.report(), tmp_path / "leaks.md")
    assert (tmp_path / "leaks.md").read_bytes().startswith(b"### No GPU memory leaks found\n")

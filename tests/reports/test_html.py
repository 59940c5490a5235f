"""The HTML report as a file: its structure, its policy, its size, and that whatever it shows stays text."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from html.parser import HTMLParser
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.findings import ArrayInfo, Autograd, Contribution, FixtureRecord, Holder, KnownLeak, PathStep
from pytest_gpuleak.model.source_files import Origin
from pytest_gpuleak.reports import formats
from pytest_gpuleak.reports.html.chart import build_charts, draw_chart
from pytest_gpuleak.reports.html.page import encode_report

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.model.records import RunReport
    from tests.reports.conftest import Make

MIB = 1024**2
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script><!--",
    "<img src=x onerror=alert(1)>",
    '"onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\x1b[31mred\x00\u202egpj.exe\u2066\ud800",
    "]]><svg onload=alert(1)>",
    "&lt;b&gt;&amp;",
]
VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """A page taken apart: its tags, attributes, texts, and what stands in its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.raw: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text.replace("<wbr>", ""))  # where a line may break: as many as a name has parts
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("script", "style"):
            self.raw.append((tag if dict(attrs).get("type") != "application/json" else "data", ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            kind, text = self.raw[-1]
            self.raw[-1] = (kind, text + data)
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def raw_data(self) -> str:
        (data,) = [text for kind, text in self.raw if kind == "data"]
        return data

    @property
    def data(self) -> Any:
        return json.loads(self.raw_data)

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


def page_of(report: RunReport) -> Page:
    page = Page(encode_report(report))
    assert page.open == []
    return page


def full_report(make: type[Make], text: str) -> RunReport:
    """A report that says `text` wherever a report says anything of the user's."""
    origin = Origin(text, 14, text, text)
    holder = Holder("module", text, text, (PathStep(text, text), PathStep(text, text)), text, 3, 1)
    finding = make.finding(
        device=text,
        fingerprint=text,
        tensors=(ArrayInfo((2, 2), text, text, 16, 64, origin),),
        holder=holder,
        other_holders=(dataclasses.replace(holder, kind="frame"),),
        hint=text,
        code=text,
        why_unconfirmed=text,
        metric=text,
        contributions=(Contribution(text, 5, 2, origin, dataclasses.replace(holder, root="other")),),
        evidence=(text,),
        autograd=Autograd(1, 2, 3),
    )
    memory = {text: {"allocated_before": 0, "allocated_after": 5 * MIB, "peak": 6 * MIB}}
    return make.report(
        make.test(f"{text}::{text}", finding, worker=text, memory=memory, file=text, line=3),
        make.test(f"{text}::two", verdict="unchecked", why_unchecked=text, worker=text, memory=memory),
        fixtures=(FixtureRecord(text, text, text, (dataclasses.replace(finding, failed=False),), text, 3, text, text),),
        environment={text: text, "devices": [text]},
        policy={"nested": {text: [text]}},
        stale=(KnownLeak(text, text, "retained", text, 5, text, text, text),),
        incomplete=text,
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_adds_no_element_and_no_attribute(make: type[Make], text: str) -> None:
    harmless, hostile = page_of(full_report(make, "harmless")), page_of(full_report(make, text))
    assert hostile.tags == harmless.tags
    assert [(tag, name) for tag, name, _ in hostile.attributes] == [(tag, name) for tag, name, _ in harmless.attributes]
    assert [kind for kind, _ in hostile.raw] == [kind for kind, _ in harmless.raw]


def test_hostile_text_is_shown_as_it_is_written(make: type[Make]) -> None:
    assert HOSTILE[0] in page_of(full_report(make, HOSTILE[0])).text
    assert page_of(full_report(make, HOSTILE[1])).data["tests"]["files"] == [HOSTILE[1]]


def test_nothing_invisible_or_unencodable_is_in_the_file(make: type[Make]) -> None:
    written = encode_report(full_report(make, HOSTILE[7]))
    written.encode()
    assert "\\x1b[31mred\\x00\\u202egpj.exe\\u2066\\ud800" in written
    assert not [character for character in written if not character.isprintable() and character != "\n"]


def test_links_lead_nowhere_but_into_the_page(make: type[Make]) -> None:
    page = page_of(full_report(make, "javascript:alert(1)"))
    assert page.values("src") == []
    assert {link for link in page.values("href") if not re.fullmatch(r"#[a-z]+(-\d+)?", link)} == {"data:,"}
    targets = [link[1:] for link in page.values("href") if link.startswith("#")]
    assert set(targets) <= set(page.values("id"))
    assert Counter(page.values("id")).most_common(1)[0][1] == 1


def test_the_policy_allows_exactly_the_scripts_and_styles_inside(make: type[Make]) -> None:
    page = page_of(full_report(make, "any"))
    policy = next(
        value for tag, name, value in page.attributes if tag == "meta" and name == "content" and "src" in value
    )
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}
    for kind, rule in (("script", "script-src"), ("style", "style-src")):
        texts = [text for its_kind, text in page.raw if its_kind == kind]
        assert texts
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert rules[rule] == [f"'sha256-{digest}'" for digest in hashes]
    assert rules["default-src"] == ["'none'"]
    assert page.values("style") == []
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_what_leaked_and_who_holds_it_is_plain_text(make: type[Make]) -> None:
    page = page_of(make.report(make.test("tests/test_a.py::test_b", make.finding())))
    text = page.text
    assert "1 test leaked 4.0 MiB" in text
    for said in (
        "tests/test_a.py::test_b",
        "1 tensor, 4.0 MiB on cuda:0; each run leaves 4.0 MiB more",
        "app.metrics.HISTORY module global",
        "[0] to float32 [1024, 1024]",
        "app/model.py:14 in forward self.meter.update(y.detach())",
    ):
        assert said in text


def test_a_fix_has_its_code_and_title(make: type[Make]) -> None:
    fix = make.finding(hint="Empty it in teardown.", code="GL701")
    later = make.finding(hint="Empty it in teardown.", code="GL999")
    page = encode_report(make.report(make.test("t.py::test_a", fix), make.test("t.py::test_b", later)))
    assert "<small>GL701 container that each run adds to</small>" in page
    assert "<small>GL999</small>" in page
    assert "code <code>GL701</code>" in page


def test_what_is_no_tensor_is_not_called_one(make: type[Make]) -> None:
    part = Contribution("bytearray", 30 * MIB, 2)
    finding = make.finding(kind="host", count=0, metric="heap", tensors=(), contributions=(part,), device="cpu")
    text = page_of(make.report(make.test("t", finding))).text
    assert "4.0 MiB of host memory (heap); each run leaves 4.0 MiB more" in text
    assert "[0] to bytearray" in text
    assert "30.0 MiB: bytearray (2 x)" in text
    assert "tensor" not in text.partition("link to this finding")[0]


def test_the_deciding_edge_is_the_one_emphasised(make: type[Make]) -> None:
    holder = Holder("module", "app.A", "app.A.b[0]", (PathStep(".b", "A"), PathStep("[0]", "list")), deciding=1)
    written = encode_report(make.report(make.test("t", make.finding(holder=holder))))
    assert re.findall(r'<li class="deciding"><strong><code>(.*?)</code></strong>.*? <em>cut here</em>', written) == [
        "[0]"
    ]


@pytest.mark.parametrize(
    ("changes", "state", "headline"),
    [
        ({}, "leaked", "1 test leaked 4.0 MiB"),
        ({"known": True, "failed": False}, "known", "No test leaked; 1 known leak passed"),
        ({"failed": False}, "noted", "No test leaked"),
    ],
)
def test_each_finding_says_what_it_is_to_the_reader(
    make: type[Make], changes: dict[str, Any], state: str, headline: str
) -> None:
    page = page_of(make.report(make.test("t", make.finding(**changes))))
    assert page.values("data-state") == [state]
    assert headline in page.text


def test_an_incomplete_run_says_so_first(make: type[Make]) -> None:
    page = page_of(make.report(make.test("t"), incomplete="killed by signal 9"))
    assert "Incomplete run: no test leaked so far" in page.text
    assert "This report is incomplete: killed by signal 9" in page.text
    assert ("div", "role", "alert") in page.attributes


def test_stale_entries_of_the_baseline_are_listed_with_their_reasons(make: type[Make]) -> None:
    entry = KnownLeak("tests/test_a.py::test_b", None, "growing", "cuda", 5 * MIB, "0a", "app.CACHE[0]", "until #12")
    text = page_of(make.report(make.test("t"), stale=(entry,))).text
    assert "1 baseline entry is stale" in text
    assert "tests/test_a.py::test_b growing cuda app.CACHE[0] until #12 5.0 MiB" in text


def test_a_clean_run_has_no_chart_nor_filter_but_its_tests(make: type[Make]) -> None:
    page = page_of(make.report(make.test("a.py::test_a"), make.test("a.py::test_b")))
    assert "Nothing was left behind." in page.text
    assert "form" not in page.tags
    assert "svg" not in page.tags
    assert page.data["tests"]["files"] == ["a.py"]
    assert [row[:2] for row in page.data["tests"]["rows"]] == [[0, "test_a"], [0, "test_b"]]


def test_each_worker_has_a_line_of_its_own_and_leaks_are_marked_on_it(make: type[Make]) -> None:
    def memory(size: int) -> dict[str, dict[str, int]]:
        return {"cuda:0": {"allocated_before": 0, "allocated_after": size, "peak": size}, "host": {"heap_after": 1}}

    tests = [make.test(f"t{at}", worker=f"gw{at % 2}", memory=memory((at + 1) * MIB)) for at in range(6)]
    tests[3] = make.test("t3", make.finding(), worker="gw1", memory=memory(4 * MIB))
    page = page_of(make.report(*tests))
    assert page.tags.count("figure") == 2
    assert page.tags.count("polyline") == 4
    chart = page.data["charts"][0]
    assert (chart["device"], chart["metrics"], chart["marks"]) == ("cuda:0", ["allocated", "peak"], [[3, 1, "leaked"]])
    assert chart["values"][0] == [[1024, 3072, 5120], [2048, 4096, 6144]]
    assert ("a", "href", "#finding-1") in page.attributes


def test_a_drawing_keeps_the_extremes_of_many_points(make: type[Make]) -> None:
    sizes = [10 * MIB] * 5000
    sizes[1234], sizes[4321] = 90 * MIB, 0
    tests = [make.test(f"t{at}", memory={"cpu": {"allocated_after": size}}) for at, size in enumerate(sizes)]
    (chart,) = build_charts(tests, ["main"], {})
    drawing = draw_chart(chart, {"main": range(5000)})
    heights = [y for _, y in drawing.lines[0].points]
    assert len(heights) < 1000
    assert len(set(heights)) == 3
    assert all(drawing.bottom >= y >= 0 for y in heights)


def test_the_lines_of_a_chart_have_labels_that_differ(make: type[Make]) -> None:
    for sizes in (
        [0, 0],
        [900 * MIB, 900 * MIB],
        [2**31, 2**31 + 2**25],
        [0, 2**70],
        [5, 600],
        [1000 * MIB, 1025 * MIB],
    ):
        tests = [make.test(f"t{at}", memory={"host": {"heap_after": size}}) for at, size in enumerate(sizes)]
        (chart,) = build_charts(tests, ["main"], {})
        labels = [label for _, label in draw_chart(chart, {"main": range(2)}).rows]
        assert 2 <= len(set(labels)) == len(labels) <= 7, labels


def test_odd_numbers_are_written(make: type[Make]) -> None:
    memory = {"cuda:0": {"allocated_before": 2**70, "allocated_after": 0, "peak": 2**70}, "host": {}}
    finding = make.finding(bytes=2**70, count=2**70)
    tests = [make.test("t", finding, memory=memory, duration_s=math.nan), make.test("u", duration_s=math.inf)]
    page = page_of(make.report(*tests, summary={"leaked": "<b>", "overhead_per_test_us": math.nan}))
    assert [row[5] for row in page.data["tests"]["rows"]] == [None, None]


def test_an_empty_run_is_written(make: type[Make]) -> None:
    assert "0 tests ran" in page_of(make.report()).text


def test_a_tenth_of_a_large_run_is_within_a_tenth_of_the_limit(make: type[Make]) -> None:
    name = "tests/attention/test_attention_{}.py::TestLayers::test_backward[{}-float32-cuda]"
    counters = {
        "allocated_before": 900 * MIB,
        "allocated_after": 900 * MIB,
        "reserved_after": 990 * MIB,
        "peak": 990 * MIB,
    }
    memory = {"cuda:0": counters, "cuda:1": counters, "host": {"heap_before": 800 * MIB, "heap_after": 800 * MIB}}
    holder = Holder(
        "class", "app.Model.seen", "app.Model.seen[0].x.y", tuple(PathStep("[0]", "list") for _ in range(6))
    )
    leak = make.finding(holder=holder, hint="x" * 120, tensors=make.finding().tensors * 50, evidence=("x" * 80,) * 2)
    tests = [
        make.test(name.format(at % 40, at), *([leak] if at % 10 == 0 else []), memory=memory) for at in range(1000)
    ]
    fixed = len(encode_report(make.report()))
    assert fixed < 150_000
    assert len(encode_report(make.report(*tests))) - fixed < 480_000


def test_a_report_is_written_by_its_suffix_and_replaces_the_old_one(make: type[Make], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    formats.write_report(make.report(make.test("t")), path)
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_the_plotting_library_ships_with_its_licence_and_cannot_end_its_element() -> None:
    folder = resources.files("pytest_gpuleak.reports") / "templates"
    assert "MIT License" in (folder / "uplot" / "LICENSE").read_text(encoding="utf-8")
    for script in (folder / "uplot" / "uPlot.iife.min.js", folder / "report.js", folder / "head.js"):
        assert not re.search(r"</script|<!--", script.read_text(encoding="utf-8"), re.IGNORECASE)

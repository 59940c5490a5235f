"""What a run met beside its leaks: the same sentences in the terminal, in `gpuleak show`, in HTML and in Markdown."""

from __future__ import annotations

import dataclasses
import html
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.cli.output import render_report
from pytest_gpuleak.model.devices import DeviceWait, LostDevice, Occupied
from pytest_gpuleak.model.finding_codec import encode
from pytest_gpuleak.model.first_init import FirstInit
from pytest_gpuleak.model.summary import CleanUp
from pytest_gpuleak.reports import markdown
from pytest_gpuleak.reports.html import page
from pytest_gpuleak.reports.terminal.closing import Shown, closing_steps, describe_facts
from pytest_gpuleak.reports.terminal.lines import MARKUP
from tests.reports.test_html import Page

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import RunReport

OCCUPIED = Occupied("cuda:0", "process", 1 << 30, 7, "python -m a.server --with many --further options", "t.py::test_a")
SUMMARY: dict[str, Any] = {
    "run_s": 61.0,
    "cleanup": [dataclasses.asdict(CleanUp("gc.collect", "fixture 'cleanup'", "conftest.py", 12, 300, 24.0))],
    "lost_devices": [LostDevice("cuda:0", "an <assert>", "t.py::test_b", "during", None, "main")._asdict()],
    "first_init": encode(FirstInit("cuda", "torch.cuda", "test", "main", 7, "t.py::test_a", file="t.py", line=3)),
}
SENTENCES = [
    (
        "after t.py::test_a, 1.0 GiB of cuda:0 are held after 2.0 s by pid 7 (python -m a.server --with many --further "
        "options), which is alive, started by t.py::test_a"
    ),
    "waited 2.0 s for devices after 1 test",
    "fixture 'cleanup' (conftest.py:12) collects the heap 300 times: 24 s of 61; --gpu-leak finds the tests that need it",
    "cuda:0 stopped answering during t.py::test_b (an <assert>); no earlier test had used it; later tests are not checked",
    "cuda was first initialised in t.py::test_a, at t.py:3",
]


@pytest.fixture
def report(make: Any) -> RunReport:
    test = make.test("t.py::test_a", device_wait=DeviceWait(2.0, (OCCUPIED,)))
    made: RunReport = make.report(test, incomplete="killed by signal 9", faults=("a hook failed",))
    return dataclasses.replace(made, summary={**made.summary, **SUMMARY})


def unwrapped(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)


def test_each_is_a_sentence(report: RunReport) -> None:
    assert describe_facts(report) == SENTENCES


def test_a_run_that_met_nothing_says_nothing(make: Any) -> None:
    nothing = make.report(make.test("t.py::test_a"))
    assert describe_facts(nothing) == []
    assert "What else" not in page.encode_report(nothing)
    assert "<pre>" not in markdown.encode_report(nothing)


@pytest.mark.parametrize("width", [1, 60, 80, 120])
def test_the_terminal_wraps_them_and_cuts_nothing(report: RunReport, width: int) -> None:
    steps = dict(closing_steps(report.summary, report, Shown(1, width)))
    lines = steps["showing what stays on devices"]()
    assert all(len(line) <= max(width, 60) for line in lines)
    assert unwrapped(lines) == " ".join(f"gpu-leak: {sentence}" for sentence in SENTENCES[:2])


def test_every_report_has_them(report: RunReport) -> None:
    shown = unwrapped(render_report(report, 1))
    (block,) = markdown.encode_report(report).split("<pre>")[1:]
    in_markdown = unwrapped(html.unescape(block).splitlines())
    texts = Page(page.encode_report(report)).texts
    for sentence in SENTENCES:
        assert f"gpu-leak: {sentence}" in shown
        assert sentence in in_markdown
        assert sentence in texts
    assert shown.index("gpu-leak: 0 leaked") < shown.index("a hook failed") < shown.index("killed by signal 9")


def test_markdown_says_that_they_were_cut(report: RunReport) -> None:
    assert "5 lines on what else the run met" in markdown.encode_report(report, limit=900)


def test_a_fact_of_another_release_costs_itself_alone(report: RunReport) -> None:
    strange = dataclasses.replace(report, summary={**report.summary, "first_init": {"device": "cuda"}})
    assert describe_facts(strange)[:4] == SENTENCES[:4]
    assert describe_facts(strange)[4].startswith("showing who initialised a device first failed: KeyError")
    assert "0 leaked" in unwrapped(render_report(strange, 0))


def test_what_fails_the_run_says_so_in_red(report: RunReport) -> None:
    shown = Shown(0, 80, on_file=False, fails_by_init=True, strict=True)
    lines = [line for _, write in closing_steps(report.summary, report, shown) for line in write()]
    red = [line for line in lines if MARKUP.get(type(line)) == {"red": True}]
    assert [line.rpartition("; ")[2] for line in red[1:]] == [
        "the run fails (--gpu-leak-no-init-at-collection)",
        "the run fails (--gpu-leak-strict)",
    ]
    assert "INCOMPLETE" not in unwrapped(lines)

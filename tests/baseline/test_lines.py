"""The lines at the end of a run, and a finding's, whatever the baseline's file and the tests' ids hold."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.baseline.file import Baseline
from pytest_gpuleak.baseline.update import apply_baseline, update_baseline
from pytest_gpuleak.model.findings import BaselineChange, Finding, KnownLeak
from pytest_gpuleak.reports.terminal.baseline import (
    CHANGES_SHOWN,
    STALE_SHOWN,
    render_change,
    render_entry,
    render_stale,
)
from pytest_gpuleak.reports.terminal.findings import render_finding
from pytest_gpuleak.reports.terminal.section import render_leaks
from pytest_gpuleak.reports.terminal.summary import render_summary
from tests.reports.conftest import Make

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import RunReport

ENTRY = KnownLeak("test_a.py::test_x", None, "growing", "cuda", 2048, "00aa", "app.HISTORY", "why")
EVIL = "\x1b[31m\r\n\u202e::error::\x07"


def finding_of(report: RunReport) -> Finding:
    return report.tests[0].findings[0]


def test_an_entry_is_one_line() -> None:
    assert render_entry(ENTRY) == "test_a.py::test_x  growing, 2.0 KiB on cuda, held by app.HISTORY"
    fixture = dataclasses.replace(ENTRY, test="", fixture="model", holder="")
    assert render_entry(fixture) == "fixture 'model'  growing, 2.0 KiB on cuda"


@given(st.text(), st.text(), st.text(), st.text())
def test_no_entry_can_do_anything_to_a_terminal(test: str, fixture: str, holder: str, device: str) -> None:
    entry = KnownLeak(EVIL + test, EVIL + fixture, "growing", EVIL + device, 1, "00aa", EVIL + holder)
    change = BaselineChange((entry,), (entry,), (entry,), (entry,), (entry,))
    assert all(line.isprintable() for line in render_change(change, "leaks.toml"))
    assert all(line.isprintable() for line in render_stale([entry], "leaks.toml", fails=True))


@given(st.text())
def test_no_reason_can_do_anything_to_a_terminal(reason: str) -> None:
    report = Make.report(Make.test("test_a.py::test_x", Make.finding(fingerprint="00aa")))
    entry = dataclasses.replace(ENTRY, bytes=2**40, reason=EVIL + reason)
    judged = apply_baseline(report, Baseline((entry,)))
    lines = render_leaks(judged, verbosity=1, width=80) + render_finding(finding_of(judged))
    assert all(line.isprintable() for line in lines)
    # A long line is wrapped.
    assert r"known(baseline):\x1b[31m\r\n\u202e::error::\x07" in "".join(lines).replace(" ", "")


def test_only_so_many_stale_entries_are_named() -> None:
    lines = render_stale([ENTRY] * (STALE_SHOWN + 3), "leaks.toml", fails=False)
    assert lines[0] == f"gpu-leak: {STALE_SHOWN + 3} entries of the baseline are stale, the leak is gone: leaks.toml"
    assert (len(lines), lines[-2]) == (STALE_SHOWN + 3, "  and 3 more")
    assert render_stale([], "leaks.toml", fails=True) == []


def test_a_changed_entry_says_what_it_was() -> None:
    before = Baseline((ENTRY,))
    report = Make.report(Make.test("test_a.py::test_x", Make.finding(fingerprint="00aa", bytes=4096)))
    _, change = update_baseline(before, report)
    assert render_change(change, "leaks.toml") == [
        "gpu-leak: baseline leaks.toml: 0 added, 0 removed, 1 changed, 0 kept",
        "  ~ test_a.py::test_x  growing, 4.0 KiB on cuda, held by app.HISTORY (was growing, 2.0 KiB)",
    ]


def test_the_summary_counts_what_is_known_and_stale() -> None:
    report = Make.report(Make.test("test_a.py::test_x"), summary={"clean": 1, "known": 2, "stale": 1})
    assert render_summary(report.summary) == "gpu-leak: 0 leaked, 1 clean, baseline: 2 known, 1 stale"


def test_an_update_of_thousands_of_entries_lists_some_and_counts_the_rest() -> None:
    entries = tuple(KnownLeak(f"t.py::test_{at}", None, "growing", "cpu", 4, "00aa") for at in range(CHANGES_SHOWN + 5))
    change = BaselineChange(added=entries, removed=entries, changed=entries, before=entries, kept=())
    lines = render_change(change, "leaks.toml")
    assert lines[0].startswith(f"gpu-leak: baseline leaks.toml: {CHANGES_SHOWN + 5} added")
    assert lines.count("    and 5 more, in the file") == 3
    assert len(lines) == 2 + 3 * (CHANGES_SHOWN + 1)

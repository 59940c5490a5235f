"""Why something of a finding is not known, from findings fed in: one place says it, whatever the kind."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_gpuleak.engine.describe import FIXTURE_ALONE, SEARCH_CUT, with_reasons
from pytest_gpuleak.engine.holders import NOT_SEARCHED
from pytest_gpuleak.explain.rootless import CROWD_ROOT, TIMEOUT_ROOT
from pytest_gpuleak.explain.roots.library_names import AT_EXIT
from pytest_gpuleak.heap.hidden_references import RING_ROOT
from pytest_gpuleak.model.findings import (
    CYCLE_ROOT,
    FREED,
    NO_OBJECT,
    WAITING,
    ArrayInfo,
    Contribution,
    Finding,
    Holder,
    Judged,
)
from pytest_gpuleak.model.source_files import Origin

LINE = Origin("app.py", 3, "f", "x = 1")
HELD = Holder("module", "app.KEPT", "app.KEPT[0]")
HOW = Judged(2, "10 sure from a settled state")


def growing(holder: Holder | None = HELD, line: Origin | None = None, kind: str = "growing") -> Finding:
    array = ArrayInfo((1,), "float32", "cpu", 4, 4, line)
    return Finding(kind, True, "cpu", 1, 4, 4, "aa", tensors=(array,), holder=holder)  # type: ignore[arg-type]


def counted(kind: str, *parts: Contribution, judged: Judged | None = None) -> Finding:
    return Finding(kind, True, "cpu", 0, 4, 4, "aa", metric="heap", contributions=parts, judged=judged)  # type: ignore[arg-type]


def reasons(found: Finding, how: Judged = HOW) -> Judged:
    judged = with_reasons(found, how).judged
    assert judged is not None
    return judged


def test_a_finding_with_all_has_no_reasons() -> None:
    assert reasons(growing(line=LINE)) == HOW


@pytest.mark.parametrize(
    ("holder", "why"),
    [
        (FREED, "the memory was freed before the search, at the end of the run"),
        (NO_OBJECT, "nothing in Python refers to the memory any more, which C++ keeps"),
        (NOT_SEARCHED, "not searched for, since no report is written and notes are not shown (-v)"),
        (WAITING, "searched for at the end of the run, with those of other findings"),
        (Holder("unknown", "", "unknown: the search failed: a fault"), "the search failed: a fault"),
        (Holder("unknown", CROWD_ROOT, CROWD_ROOT), "too many containers refer to it"),
        (Holder("native", "C++", "C++[0]"), "nothing in Python leads to it: C++ keeps it"),
        (None, "it was freed before its holder was searched for"),
        (Holder("native", "C++ (a node)", "C++ (a node)[0]"), "nothing in Python leads to it: C++ keeps it"),
        (Holder("native", RING_ROOT, RING_ROOT), ""),
        (Holder("native", f"{AT_EXIT}app.stop", f"{AT_EXIT}app.stop"), ""),
        (Holder("unknown", CYCLE_ROOT, CYCLE_ROOT), ""),
    ],
)
def test_why_nobody_is_named(holder: Holder | None, why: str) -> None:
    judged = reasons(growing(holder, LINE))
    assert (judged.why_no_holder, judged.search_cut) == (why, "")


def test_a_search_that_stopped_is_told_with_and_without_a_holder() -> None:
    cut = reasons(growing(Holder("unknown", TIMEOUT_ROOT, f"{TIMEOUT_ROOT}[0]"), LINE))
    assert (cut.why_no_holder, cut.search_cut) == (SEARCH_CUT, SEARCH_CUT)
    named = reasons(growing(line=LINE), dataclasses.replace(HOW, search_cut=SEARCH_CUT))
    assert (named.why_no_holder, named.search_cut) == ("", SEARCH_CUT)


@pytest.mark.parametrize("kind", ["cycle", "process", "host", "unattributed", "recompiled"])
def test_each_kind_says_why_it_has_no_holder(kind: str) -> None:
    assert reasons(counted(kind)).why_no_holder
    assert reasons(counted(kind, Contribution("8 x bytes", 8, created=LINE))).why_no_line == ""


@pytest.mark.parametrize(
    ("found", "how", "why"),
    [
        (growing(), HOW, "made in C++, in an installed library, or by a thread from before"),
        (growing(kind="retained"), HOW, "made by the first run alone, and lines are recorded only in a re-run"),
        (growing(), Judged(1, "", why_not_again=FIXTURE_ALONE), f"{FIXTURE_ALONE}, and lines are recorded only"),
        (growing(), dataclasses.replace(HOW, why_no_line="it is allowed"), "it is allowed"),
        (counted("host"), HOW, "nothing that was recorded while it ran again tells of it"),
        (counted("unattributed", judged=Judged(0, "", why_no_line="no history")), HOW, "no history"),
    ],
)
def test_why_no_line_is_known(found: Finding, how: Judged, why: str) -> None:
    assert reasons(found, how).why_no_line.startswith(why)


def test_what_a_judge_says_of_a_cut_is_kept_beside_how_the_runs_went() -> None:
    judged = reasons(counted("host", judged=Judged(0, "", cut="a graph was not counted")))
    assert (judged.runs, judged.step, judged.cut) == (HOW.runs, HOW.step, "a graph was not counted")

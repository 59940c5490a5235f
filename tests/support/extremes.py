"""Records that hypothesis makes up, each field at its extremes: what a report may be given at the worst."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from pytest_gpuleak.model import findings, peak_parts, records, source_files
from tests.reports.conftest import Make
from tests.support.hostile import TEXTS as HOSTILE

LONGEST = "\u202e" + "y" * 1_000_000

TEXTS = st.sampled_from(
    [*HOSTILE, "", " ", "\n", "</script>", "<!--", "| a | b |", "\ud800", "\x00" * 500, LONGEST]
) | (st.text(st.characters(), max_size=40))
SIZES = (
    st.sampled_from([0, 1, -1, 1023, 1024, 2**31, 2**63 - 1, 2**63, -(2**63), 2**70, 10**400, -(10**400)])
    | st.integers()
)
LINES = st.sampled_from([0, 1, -4, 2**31 - 1, 2**31, 2**70]) | st.integers()
SECONDS = st.floats(allow_nan=True, allow_infinity=True)
ORIGINS = st.builds(source_files.Origin, TEXTS, LINES, TEXTS, TEXTS)


def some(items: st.SearchStrategy[Any], size: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    """Tuples of items, empty ones too."""
    return st.lists(items, max_size=size).map(tuple)


def words(known: Any) -> st.SearchStrategy[Any]:
    """The words that a field has, and some that this release does not know."""
    return st.sampled_from(get_args(known)) | TEXTS


HOLDERS = st.builds(
    findings.Holder,
    kind=words(findings.HolderKind),
    root=TEXTS,
    text=TEXTS,
    path=some(st.builds(findings.PathStep, TEXTS, TEXTS)),
    file=st.none() | TEXTS,
    line=st.none() | LINES,
    deciding=st.none() | LINES,
    edit_file=st.none() | TEXTS,
    edit_line=st.none() | LINES,
    edit_code=TEXTS,
)
ARRAYS = st.builds(findings.ArrayInfo, some(SIZES), TEXTS, TEXTS, SIZES, SIZES, st.none() | ORIGINS, TEXTS, TEXTS)
PARTS = st.builds(findings.Contribution, TEXTS, SIZES, SIZES, st.none() | ORIGINS, st.none() | HOLDERS)
PEAKS = st.builds(
    peak_parts.Peak,
    TEXTS,
    SIZES,
    st.none()
    | st.builds(
        peak_parts.PeakMoment,
        st.none() | TEXTS,
        st.none() | LINES,
        TEXTS,
        words(peak_parts.PeakPhase),
        TEXTS,
        TEXTS,
        TEXTS,
    ),
    some(
        st.builds(
            peak_parts.PeakPart,
            words(peak_parts.PeakCategory),
            TEXTS,
            SIZES,
            SIZES,
            TEXTS,
            some(SIZES),
            st.none() | ORIGINS,
            TEXTS,
        )
    ),
    SIZES,
    st.booleans(),
    st.booleans(),
    some(TEXTS),
)
PROCESSES = st.builds(findings.HelperProcess, SIZES, TEXTS, TEXTS, st.none() | TEXTS)
FINDINGS = st.builds(
    findings.Finding,
    kind=words(findings.FindingKind),
    failed=st.booleans(),
    device=TEXTS,
    count=SIZES,
    bytes=SIZES,
    bytes_per_run=SIZES,
    fingerprint=TEXTS,
    known=st.booleans(),
    tensors=some(ARRAYS),
    holder=st.none() | HOLDERS,
    autograd=st.none() | st.builds(findings.Autograd, SIZES, SIZES, SIZES, st.booleans()),
    hint=st.none() | TEXTS,
    code=TEXTS,
    why_unconfirmed=st.none() | TEXTS,
    why_line_unknown=st.none() | TEXTS,
    other_holders=some(HOLDERS),
    metric=st.none() | TEXTS,
    contributions=some(PARTS),
    evidence=some(TEXTS),
    baseline=st.none() | st.builds(findings.BaselineStatus, st.sampled_from(["known", "grown", "new"]), TEXTS),
    until_teardown=st.booleans(),
    provisional=st.booleans(),
    peak=st.none() | PEAKS,
    process=st.none() | PROCESSES,
    judged=st.none() | st.builds(findings.Judged, SIZES, TEXTS, some(TEXTS), *[TEXTS] * 5),
)
TESTS = st.builds(
    records.TestRecord,
    nodeid=TEXTS,
    verdict=st.sampled_from(get_args(records.Verdict)),
    why_unchecked=st.none() | TEXTS,
    outcome=st.sampled_from(get_args(records.Outcome)),
    worker=TEXTS,
    duration_s=SECONDS,
    overhead_s=SECONDS,
    memory=st.dictionaries(
        TEXTS | st.just("host"),
        st.dictionaries(st.sampled_from(["heap_before", "heap_after", "peak"]) | TEXTS, SIZES, max_size=3),
        max_size=2,
    ),
    findings=some(FINDINGS),
    allowed=st.none() | TEXTS,
    file=st.none() | TEXTS,
    line=st.none() | LINES,
    faults=some(TEXTS),
    suspect_s=st.dictionaries(st.sampled_from(["check", "reruns", "search"]) | TEXTS, SECONDS, max_size=3),
)
FIXTURES = st.builds(
    findings.FixtureRecord,
    TEXTS,
    TEXTS,
    TEXTS,
    some(FINDINGS),
    st.none() | TEXTS,
    st.none() | LINES,
    TEXTS,
    st.none() | TEXTS,
)
KNOWN = st.builds(
    findings.KnownLeak, TEXTS, st.none() | TEXTS, words(findings.FindingKind), TEXTS, SIZES, TEXTS, TEXTS, TEXTS
)
PLAIN = st.recursive(
    st.none() | st.booleans() | SIZES | SECONDS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
MAPPINGS = st.dictionaries(st.sampled_from(["python", "root", "devices"]) | TEXTS, PLAIN, max_size=3)


def _report(
    tests: tuple[records.TestRecord, ...], fixtures: tuple[findings.FixtureRecord, ...], **parts: Any
) -> records.RunReport:
    return Make.report(*tests, fixtures=fixtures, **parts)


REPORTS = st.builds(
    _report,
    tests=some(TESTS),
    fixtures=some(FIXTURES, 2),
    created=TEXTS,
    environment=MAPPINGS,
    policy=MAPPINGS,
    stale=some(KNOWN),
    incomplete=st.none() | TEXTS,
)
"""Runs of which every text, number and list is at an extreme; what the plugin counts itself is left right."""

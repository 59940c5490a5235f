"""Texts that do something wherever they are not escaped, and a report that is made of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.findings import (
    ArrayInfo,
    BaselineStatus,
    Contribution,
    Finding,
    FixtureRecord,
    Holder,
    KnownLeak,
    PathStep,
)
from pytest_gpuleak.model.source_files import Origin

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import RunReport

TEXTS = (
    "<script>alert(1)</script>",
    "</code></pre></details><img src=x onerror=alert(1)>",
    "a|b\\|c\\\\|d",
    "`` ` ``` x",
    "one\n\ntwo\r\n::error::three",
    "::stop-commands::x",
    "##[error]x",
    "\x1b[31mred\x1b]8;;http://x\x07",
    "\u202eright to left\u2066",
    "]]>",
    "[a](javascript:alert(1)) ![b](http://x)",
    "@everyone #123 https://example.com a@b.example :tada:",
    "%0A::error::x%25,:",
    "{0} {{x}}",
    "\x00\x08\ud800\ufffe",
    "&lt;b&gt; &#64;",
    "x" * 100_000,
)


def hostile_finding(make: Any, text: str, **changes: Any) -> Finding:
    """A finding whose every text is one."""
    origin = Origin(text, 3, text, text)
    holder = Holder("module", text, text, (PathStep(text, text), PathStep(text, text)), text, 7, 0, text, 9)
    finding: Finding = make.finding(
        device=text,
        fingerprint=text,
        tensors=(ArrayInfo((1,), text, text, 4, 4, origin, "", text),),
        contributions=(Contribution(text, 4, 2, origin, holder),),
        holder=holder,
        other_holders=(holder,),
        hint=text,
        code=text,
        why_unconfirmed=text,
        why_line_unknown=text,
        evidence=(text,),
        metric=None,
    )
    return dataclasses.replace(finding, **changes)


def hostile_report(make: Any, text: str) -> RunReport:
    """A report whose every text is one: a leak, a known one, a note, what was allowed, a fixture and a stale entry."""
    known = hostile_finding(make, text, failed=False, known=True, baseline=BaselineStatus("known", text))
    note = hostile_finding(make, text, failed=False)
    grown = hostile_finding(make, text, baseline=BaselineStatus("grown", text))
    fixture = FixtureRecord(text, text, text, (hostile_finding(make, text),), text, 5, text, None)
    report: RunReport = make.report(
        make.test(
            text,
            hostile_finding(make, text),
            grown,
            file=text,
            line=9,
            worker=text,
            suspect_s={text: 1.0, "check": 2.0},
        ),
        make.test(text, known, faults=(text,)),
        make.test(text, note, verdict="allowed", allowed=text),
        fixtures=(fixture,),
        stale=(
            KnownLeak(text, None, "growing", text, 4, text, text, text),
            KnownLeak(text, text, "cycle", text, 4, text),
        ),
        incomplete=text,
    )
    return report

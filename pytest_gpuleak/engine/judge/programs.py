"""Judge compiled programs: a pure function from what each re-run has added to a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.model.findings import Contribution, Finding
from pytest_gpuleak.model.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

MAX_SHOWN = 20
"""Programs that are listed."""

HINT = (
    "Compile a function once, at module level, and call it with what compares equal from run to run: arrays in place of "
    "Python numbers, static arguments with `__eq__` and `__hash__` by value."
)


def judge_programs(added: Sequence[Counter[str]]) -> tuple[Finding, ...]:
    """Return one finding, which fails nothing, if every re-run has added programs; `added` counts them by name."""
    if not added or not all(added):
        return ()
    last = added[-1]
    parts = [Contribution(name, 0, count) for name, count in last.most_common(MAX_SHOWN)]
    return (
        Finding(
            kind="recompiled",
            failed=False,
            device="cpu",
            count=sum(last.values()),
            bytes=0,
            bytes_per_run=0,
            fingerprint=fingerprint("recompiled", None),
            metric="programs",
            contributions=tuple(parts),
            hint=HINT,
        ),
    )

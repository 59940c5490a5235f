"""Words for the kinds of findings and holders, in every report that a person reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.model.findings import CYCLE_ROOT
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.findings import ArrayInfo, Finding, Holder
    from pytest_gpuleak.model.source_files import Origin
    from pytest_gpuleak.reports.grouping import Group

KIND_WORDS = {
    "growing": "each run leaves {per_run} more",
    "retained": "left behind, does not grow",
    "unconfirmed": "left behind, not confirmed",
    "cycle": "held until the garbage collector ran",
    "unattributed": "no tensor explains it",
    "host": "no tensor explains it",
    "process": "still running",
    "budget": "over the test's budget",
    "tracer": "kept after the function was traced",
    "recompiled": "each run compiles as many more",
}
HOLDER_WORDS = {
    "module": "module global",
    "class": "class attribute",
    "cache": "cache",
    "fixture": "fixture",
    "frame": "running frame",
    "thread": "thread",
    "traceback": "traceback",
    "native": "no Python holder found",
    "unknown": "unknown holder",
}
_WITHOUT_MEMORY = {"tracer": "tracer", "recompiled": "compiled program"}
_CALLBACKS = ("atexit callback ", "weakref.finalize callback ", "signal.getsignal(", "sys.getprofile", "sys.gettrace")
"""How the roots of functions begin that were handed to the interpreter, whatever the kind of their holder."""

CYCLE_UNKNOWN = "unknown: it was freed before it could be read, goes through C++, or the search ran out of time"
"""In the place of a cycle whose references are not known."""

GONE = "unknown: it was freed before its holder was searched for"
"""In the place of a holder that no search was made for."""

NO_HOLDER = {
    "process": "processes left running",
    "unattributed": "memory that no tensor explains",
    "host": "memory that no tensor explains",
    "budget": "peaks over their budget",
    "cycle": "reference cycles that could not be read",
}
"""In the place of a holder among others, by the kind of a finding; of other kinds the holder is not known."""

LINE_UNKNOWN = "the line is recorded only while a test runs again"
"""Why a finding has no creating line, where it does not say so itself: a report of an earlier release."""


def describe_amount(finding: Finding, limit: int) -> str:
    """Write what was left behind: ``2 tensors, 8.0 MiB on cuda:0; each run leaves 8.0 MiB more``."""
    amount = _size(finding, limit)
    if finding.kind in _WITHOUT_MEMORY:
        amount = count_of(finding.count, _WITHOUT_MEMORY[finding.kind])
    elif finding.count:
        amount = f"{count_left(finding)}, {amount}"
    per_run = format_bytes(finding.bytes_per_run)
    # A kind of a later release has no words here.
    words = KIND_WORDS.get(finding.kind, "left behind").format(per_run=per_run)
    if finding.kind in ("unattributed", "host") and finding.bytes_per_run:
        words = f"each run leaves {per_run} more"
    if finding.kind == "process" and finding.bytes_per_run:
        words += ", one more each run"
    elif finding.kind == "process" and finding.why_unconfirmed:
        words += ", not confirmed"
    return f"{amount}{in_process(finding)}; {words}"


def in_process(finding: Finding, *, whole: bool = True) -> str:
    """Write which helper process a finding was made in, with its pid, or as all its processes are called; empty: none."""
    process = finding.process
    if process is None:
        return ""
    named = process.text if whole else process.name
    return f" in {clean_text(named, _PROCESS_LIMIT)}"


_PROCESS_LIMIT = 200

FIXTURES_SHOWN = 10
"""Fixtures of a holder that are named; further ones are counted."""


def find_origin(finding: Finding) -> Origin | None:
    """Return the first known line that made an array of a finding or a part of its memory."""
    made = [*(array.created for array in finding.tensors), *(part.created for part in finding.contributions)]
    return next((origin for origin in made if origin is not None), None)


def describe_end(finding: Finding) -> str:
    """Write what a holder's path leads to: an array as its type and shape where all are alike, or a part of the memory."""
    like = {(array.dtype, array.shape) for array in finding.tensors}
    if len(like) == 1:
        dtype, shape = like.pop()
        return f"{dtype} {list(shape)}"
    return "a tensor" if like else finding.contributions[0].text if finding.contributions else ""


def describe_owners(
    group: Group, limit: int = FIXTURES_SHOWN, quoted: Callable[[str], str] = lambda name: f"'{clean_text(name, 300)}'"
) -> str:
    """Write whose findings a group has: ``7 tests, fixture 'index'``."""
    whose = [count_of(group.tests, "test")] if group.tests else []
    whose += [f"fixture {quoted(fixture.name)}" for fixture in group.fixtures[:limit]]
    if len(group.fixtures) > limit:
        whose.append(count_of(len(group.fixtures) - limit, "more fixture"))
    return ", ".join(whose)


def describe_holder(holder: Holder) -> str:
    """Write what a holder's root is: ``module global``."""
    if holder.root == CYCLE_ROOT:
        return CYCLE_ROOT.removeprefix("a ")
    if holder.root.startswith(_CALLBACKS):
        return "callback"
    return HOLDER_WORDS.get(holder.kind) or clean_text(holder.kind, 40)


def _size(finding: Finding, limit: int) -> str:
    size = format_bytes(finding.bytes)
    counter = "" if finding.metric is None else clean_text(finding.metric, limit)
    if finding.kind in ("host", "process") and finding.device == "cpu":
        return f"{size} of host memory" + (f" ({counter})" if finding.kind == "host" and counter else "")
    if counter and finding.kind != "process":
        size += f" {counter}"
    return f"{size} on {clean_text(finding.device, limit)}"


def count_left(finding: Finding) -> str:
    """Write how many arrays or processes were left behind: ``2 tensors``."""
    if finding.kind == "process":
        return "1 process" if finding.count == 1 else f"{finding.count} processes"
    return count_of(finding.count, name_array(finding.tensors[0]) if finding.tensors else "tensor")


def name_array(array: ArrayInfo) -> str:
    """Name an array as its framework does: a tensor, an array, or an open file."""
    if array.framework == "safetensors":
        return "file"
    return "array" if array.framework else "tensor"

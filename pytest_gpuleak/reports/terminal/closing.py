"""The lines at the end of a run: what it met beside its leaks, the summary, and where its check failed.

pytest's terminal and `gpuleak show` print them; other reports have the facts among them, in the same words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text, wrap_text
from pytest_gpuleak.reports.terminal.lines import INDENT, MIN_WIDTH, TEXT_LIMIT, BadLine, CutLine
from pytest_gpuleak.reports.terminal.summary import render_clean_up, render_faults, render_lost_devices, render_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuleak.model.first_init import FirstInit
    from pytest_gpuleak.model.records import RunReport, TestRecord

    Step = tuple[str, Callable[[], list[str]]]
    """What is shown, as in "showing the lost devices", and a function that writes its lines."""

PREFIX: Final = "gpu-leak: "
"""Begins a line between those of other plugins."""


class Ended(Protocol):
    """A run that has ended: a report, or the records of pytest's own run."""

    @property
    def tests(self) -> Sequence[TestRecord]: ...  # noqa: D102
    @property
    def faults(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def incomplete(self) -> str | None: ...  # noqa: D102


class Shown(NamedTuple):
    """How the lines are shown: `width` 0 wraps none, `on_file` is of a report, and the others tell why the run fails."""

    verbosity: int
    width: int
    on_file: bool = True
    fails_by_init: bool = False
    strict: bool = False


def closing_steps(summary: Mapping[str, Any], run: Ended, shown: Shown) -> list[Step]:
    """Return the steps that write the end of a run, in order: the caller keeps a fault of one from the others."""
    return [
        *_facts(summary, run, shown),
        ("counting the tests", lambda: [render_summary(summary)]),
        ("showing where the check failed", lambda: _faults(run, strict=shown.strict)),
        ("telling that the report is incomplete", lambda: _incomplete(run) if shown.on_file else []),
    ]


def describe_facts(report: RunReport) -> list[str]:
    """Write what a run met beside its leaks, in the terminal's words: a sentence each, none left out."""
    lines: list[str] = []
    for name, write in _facts(report.summary, report, Shown(verbosity=1, width=0)):
        lines += isolated(write, why_not_shown(name))
    return [line.removeprefix(PREFIX) for line in lines]


def why_not_shown(step: str) -> Callable[[str], list[str]]:
    """Return what writes the line in the place of a step that failed."""
    return lambda why: [f"{PREFIX}{step} failed: {why}"]


def _facts(summary: Mapping[str, Any], run: Ended, shown: Shown) -> list[Step]:
    return [
        ("showing what stays on devices", lambda: _waits(run, shown.width)),
        ("showing the memory of helper processes", lambda: _helpers(summary)),
        ("showing the suite's clean-up", lambda: render_clean_up(summary)),
        ("showing the lost devices", lambda: [BadLine(line) for line in render_lost_devices(summary)]),
        ("showing who initialised a device first", lambda: render_init(_first_init(summary), shown)),
    ]


def render_init(found: FirstInit | None, shown: Shown) -> list[str]:
    """Write who initialised a device first: where it fails the run, breaks processes that tests fork, or with ``-v``."""
    if found is None:
        return []
    from pytest_gpuleak.reports.terminal.devices import is_shown, render_first_init

    if shown.fails_by_init:
        return [BadLine(f"{render_first_init(found)}; the run fails (--gpu-leak-no-init-at-collection)")]
    return [render_first_init(found)] if is_shown(found, shown.verbosity) else []


def _waits(run: Ended, width: int) -> list[str]:
    if not any(test.device_wait for test in run.tests):
        return []
    from pytest_gpuleak.reports.terminal.devices import describe_waits  # only with --gpu-leak-wait

    texts = describe_waits(run.tests)
    if not width:
        return texts
    return [line for text in texts for line in wrap_text(text, max(width, MIN_WIDTH), further=INDENT)]


def _helpers(summary: Mapping[str, Any]) -> list[str]:
    if not summary.get("helpers"):
        return []
    from pytest_gpuleak.reports.terminal.helpers import render_drift  # most runs have none

    return render_drift(summary)


def _first_init(summary: Mapping[str, Any]) -> FirstInit | None:
    if summary.get("first_init") is None:
        return None
    from pytest_gpuleak.model.first_init import decode_first_init  # most runs use no device

    return decode_first_init(summary["first_init"])


def _faults(run: Ended, *, strict: bool) -> list[str]:
    line = render_faults(run.tests, run.faults)
    if line is None:
        return []
    return [BadLine(f"{line}; the run fails (--gpu-leak-strict)") if strict else CutLine(line)]


def _incomplete(run: Ended) -> list[str]:
    if run.incomplete is None:
        return []
    return [BadLine(f"{PREFIX}THE REPORT IS INCOMPLETE: {clean_text(run.incomplete, TEXT_LIMIT)}")]

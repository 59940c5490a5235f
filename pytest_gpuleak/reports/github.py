"""GitHub's annotations: workflow commands at the lines of the leaks, escaped as in actions/toolkit (`command.ts`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.summary import count_known
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes
from pytest_gpuleak.reports.source_places import culprits_of, describe_unshown, findings_of, name_of, places_of, root_of
from pytest_gpuleak.reports.terminal.findings import render_short
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import RunReport
    from pytest_gpuleak.reports.grouping import Entry

MAX_ANNOTATIONS = 10
"""Errors, or warnings, of one step that GitHub shows (https://docs.github.com/rest/checks/runs)."""

_TITLE_LIMIT = 200


def render_annotations(report: RunReport) -> list[str]:
    """Write the commands, a line each: `MAX_ANNOTATIONS` errors at most, and a notice of known and stale leaks.

    With `--gpu-leak-warn` they are warnings.
    """
    prefix = root_of(report)
    failed = [entry for entry in findings_of(report) if entry[1].failed]
    culprits = isolated(lambda: _largest_first(culprits_of(failed, prefix)), lambda _: [[entry] for entry in failed])
    level = "warning" if "would_fail" in report.summary else "error"
    lines = [
        isolated(partial(_annotate, level, met, prefix), partial(_unshown, level, met))
        for met in culprits[:MAX_ANNOTATIONS]
    ]
    if len(culprits) > MAX_ANNOTATIONS:
        more = count_of(len(culprits) - MAX_ANNOTATIONS, "more leak")
        lines.append(f"gpu-leak: {more} not annotated (GitHub shows {MAX_ANNOTATIONS} {level}s a step); see GPU LEAKS")
    known = count_known(report.tests, report.fixtures)
    notes = [count_of(known, "known leak")] if known else []
    if report.stale:
        notes.append(f"{len(report.stale)} of the baseline gone: remove them from it")
    if notes:
        lines.append(f"::notice title=GPU leaks::{_escape_data(', '.join(notes))}")
    return lines


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """Escape text for a property of a workflow command."""
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


def _largest_first(culprits: list[list[Entry]]) -> list[list[Entry]]:
    sorted_findings = [sorted(met, key=lambda entry: -entry[1].bytes) for met in culprits]
    return sorted(sorted_findings, key=lambda met: -sum(found.bytes for _, found in met))


def _unshown(level: str, met: list[Entry], why: str) -> str:
    return f"::{level} title=GPU leak::{_escape_data(describe_unshown(*met[0], why))}"


def _annotate(level: str, met: list[Entry], prefix: str) -> str:
    record, found = met[0]
    place = places_of(found, record, prefix)[0][1]
    name = name_of(record)
    title = f"GPU leak: {clean_text(name, _TITLE_LIMIT)}"
    total = format_bytes(sum(found.bytes for _, found in met))
    also = f"\nalso in {len(met) - 1} more, {total} in all, see GPU LEAKS" if len(met) > 1 else ""
    message = f"{clean_text(name, ID_LIMIT)}\n{render_short(found)}{also}"
    properties = {"file": place.file, "line": str(place.line), "title": title}
    written = ",".join(f"{key}={escape_property(value)}" for key, value in properties.items())
    return f"::{level} {written}::{_escape_data(message)}"

"""What a report should say of planted files, and does not."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from pytest_gpuleak.model.findings import KIND_CODES
from pytest_gpuleak.model.source_files import is_installed
from pytest_gpuleak.reports.source_places import findings_of
from pytest_gpuleak.reports.terminal.section import render_leaks
from tests.planted.kind import EDIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.model.records import RunReport
    from tests.planted.kind import Kind


def untold(kinds: Sequence[Kind], report: RunReport) -> dict[str, str]:
    """Return by the name of a kind what is wrong; the kinds are files, numbered as `suite_of` does."""
    wrong = {}
    for number, kind in enumerate(kinds):
        own = dataclasses.replace(
            report,
            tests=tuple(test for test in report.tests if test.nodeid.startswith(f"test_{number}.py")),
            fixtures=tuple(one for one in report.fixtures if one.file == f"test_{number}.py"),
        )
        if faults := [*_faults(kind, f"test_{number}", own)]:
            wrong[kind.name] = "\n".join((*faults, *render_leaks(own, verbosity=1, width=80)))
    return wrong


def _faults(kind: Kind, module: str, report: RunReport) -> Iterator[str]:
    findings = [found for _, found in findings_of(report)]
    codes = {KIND_CODES[found.kind] for found in findings} | {found.code for found in findings}
    if kind.code and (kind.code in codes) == (kind.first == "passes"):
        yield f"codes {codes}"
    start, remedy = (text.replace("$m", module) for text in kind.hint)
    if not any(str(found.hint).startswith(start) and remedy in str(found.hint) for found in findings) and start:
        yield f"no hint {start} … {remedy}"
    holders = [found.holder for found in findings if found.holder is not None]
    if abroad := sorted(
        {one.edit_file for one in holders if one.edit_file is not None and is_installed(one.edit_file)}
    ):
        yield f"lines to edit that are no user's: {abroad}"
    lines = [number for number, line in enumerate(kind.source.splitlines(), 1) if EDIT.search(line)]
    said = "\n".join(render_leaks(report, verbosity=0, width=80)).partition("  created")[0]
    if lines and not ("  fix " in said and any(re.search(rf"{module}\.py:{line}\b", said) for line in lines)):
        yield f"none of the lines {lines}"

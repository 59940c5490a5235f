"""The line that names the command for the pages of a run's codes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports.source_places import findings_of
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.records import RunReport

_SHOWN = 6


def render_codes(report: RunReport) -> list[str]:
    """Write the command with the codes of what failed, those with the most bytes first; nothing where none failed."""
    sizes: dict[str, int] = {}

    def add(found: Finding) -> None:
        if found.failed and found.code:
            sizes[found.code] = sizes.get(found.code, 0) + found.bytes

    for _, found in findings_of(report):
        isolated(functools.partial(add, found), lambda _: None)
    codes = sorted(sizes, key=lambda code: -sizes[code])[:_SHOWN]
    return [f"gpu-leak: more on each: gpuleak explain {clean_text(' '.join(codes), ID_LIMIT)}"] if codes else []

"""Lines on the baseline at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.model.text import clean_text, format_bytes
from pytest_gpuleak.reports.terminal.lines import first_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.findings import BaselineChange, KnownLeak

STALE_SHOWN = 20
"""Number of stale entries that are listed. The JSON report has all."""

CHANGES_SHOWN = 200
"""Number of entries of an update that are listed of each sort. The file has all."""

_ID_LIMIT = 300


def render_change(change: BaselineChange, file: str) -> list[str]:
    """Write what an update changed: the counts, then each entry that was added, removed or changed."""
    counts = f"{len(change.added)} added, {len(change.removed)} removed, {len(change.changed)} changed"
    lines = [f"gpu-leak: baseline {file}: {counts}, {len(change.kept)} kept"]
    more = "    and {} more, in the file"
    lines += first_lines(change.added, CHANGES_SHOWN, lambda entry: f"  + {render_entry(entry)}", more)
    lines += first_lines(change.removed, CHANGES_SHOWN, lambda entry: f"  - {render_entry(entry)}", more)
    changed = list(zip(change.changed, change.before, strict=True))
    lines += first_lines(changed, CHANGES_SHOWN, lambda pair: _changed(*pair), more)
    if change.added:
        lines.append("gpu-leak: write into each entry's `reason` why the leak is tolerated, and have the file reviewed")
    return lines


def _changed(now: KnownLeak, was: KnownLeak) -> str:
    return f"  ~ {render_entry(now)} (was {clean_text(was.kind, 40)}, {format_bytes(was.bytes)})"


def render_stale(stale: Sequence[KnownLeak], file: str, *, fails: bool) -> list[str]:
    """Write which entries are stale and what to do; nothing where none is."""
    if not stale:
        return []
    noun = "entry of the baseline is" if len(stale) == 1 else "entries of the baseline are"
    lines = [f"gpu-leak: {len(stale)} {noun} stale, the leak is gone{', which FAILS the run' if fails else ''}: {file}"]
    lines += first_lines(stale, STALE_SHOWN, lambda entry: f"  - {render_entry(entry)}", "  and {} more")
    lines.append("  take them out of the file, or run all tests with --gpu-leak-update-baseline")
    return lines


def render_entry(entry: KnownLeak) -> str:
    """Write an entry as one line: test or fixture, size and holder."""
    where = clean_text(entry.test, _ID_LIMIT)
    if entry.fixture is not None:
        where = f"fixture '{clean_text(entry.fixture, _ID_LIMIT)}'{f' of {where}' if where else ''}"
    holder = f", held by {clean_text(entry.holder, _ID_LIMIT)}" if entry.holder else ""
    return f"{where}  {clean_text(entry.kind, 40)}, {format_bytes(entry.bytes)} on {clean_text(entry.device, _ID_LIMIT)}{holder}"

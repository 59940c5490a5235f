"""Lines on the baseline at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pytest_gpuleak.model.text import clean_text, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.findings import KnownLeak

STALE_SHOWN = 20
"""Number of stale entries that are listed. The JSON report has all."""

CHANGES_SHOWN = 200
"""Number of entries of an update that are listed of each sort. The file has all."""

_ID_LIMIT = 300


class Change(Protocol):
    """What an update changed: entries as they are now."""

    @property
    def added(self) -> tuple[KnownLeak, ...]: ...  # noqa: D102 - the name says it

    @property
    def removed(self) -> tuple[KnownLeak, ...]: ...  # noqa: D102

    @property
    def changed(self) -> tuple[KnownLeak, ...]: ...  # noqa: D102

    @property
    def kept(self) -> tuple[KnownLeak, ...]: ...  # noqa: D102

    @property
    def before(self) -> tuple[KnownLeak, ...]: ...  # noqa: D102


def render_change(change: Change, file: str) -> list[str]:
    """Write what an update changed: the counts, then each entry that was added, removed or changed."""
    counts = f"{len(change.added)} added, {len(change.removed)} removed, {len(change.changed)} changed"
    lines = [f"gpu-leak: baseline {file}: {counts}, {len(change.kept)} kept"]
    lines += _cut([f"  + {render_entry(entry)}" for entry in change.added[: CHANGES_SHOWN + 1]], len(change.added))
    lines += _cut([f"  - {render_entry(entry)}" for entry in change.removed[: CHANGES_SHOWN + 1]], len(change.removed))
    changed = [
        f"  ~ {render_entry(now)} (was {clean_text(was.kind, 40)}, {format_bytes(was.bytes)})"
        for now, was in zip(change.changed, change.before, strict=True)
    ]
    lines += _cut(changed, len(changed))
    if change.added:
        lines.append("gpu-leak: write into each entry's `reason` why the leak is tolerated, and have the file reviewed")
    return lines


def _cut(lines: list[str], count: int) -> list[str]:
    more = count - CHANGES_SHOWN
    return lines if more <= 0 else [*lines[:CHANGES_SHOWN], f"    and {more} more, in the file"]


def render_stale(stale: Sequence[KnownLeak], file: str, *, fails: bool) -> list[str]:
    """Write which entries are stale and what to do; nothing where none is."""
    if not stale:
        return []
    noun = "entry of the baseline is" if len(stale) == 1 else "entries of the baseline are"
    lines = [f"gpu-leak: {len(stale)} {noun} stale, the leak is gone{', which FAILS the run' if fails else ''}: {file}"]
    lines += [f"  - {render_entry(entry)}" for entry in stale[:STALE_SHOWN]]
    if len(stale) > STALE_SHOWN:
        lines.append(f"  and {len(stale) - STALE_SHOWN} more")
    lines.append("  take them out of the file, or run all tests with --gpu-leak-update-baseline")
    return lines


def render_entry(entry: KnownLeak) -> str:
    """Write an entry as one line: test or fixture, size and holder."""
    where = clean_text(entry.test, _ID_LIMIT)
    if entry.fixture is not None:
        where = f"fixture '{clean_text(entry.fixture, _ID_LIMIT)}'{f' of {where}' if where else ''}"
    holder = f", held by {clean_text(entry.holder, _ID_LIMIT)}" if entry.holder else ""
    return f"{where}  {clean_text(entry.kind, 40)}, {format_bytes(entry.bytes)} on {clean_text(entry.device, _ID_LIMIT)}{holder}"

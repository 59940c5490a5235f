"""Output of `gpuleak`: lines for a reader, and reports in any format."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TextIO

import click

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes
from pytest_gpuleak.reports.atomic_write import write_text
from pytest_gpuleak.reports.formats import WRITERS, render, why_not_accepted
from pytest_gpuleak.reports.terminal.baseline import STALE_SHOWN, render_entry
from pytest_gpuleak.reports.terminal.closing import Shown, closing_steps, why_not_shown
from pytest_gpuleak.reports.terminal.findings import render_line
from pytest_gpuleak.reports.terminal.lines import (
    ID_LIMIT,
    TEXT_LIMIT,
    BadLine,
    CutLine,
    DimLine,
    TitleLine,
    first_lines,
)
from pytest_gpuleak.reports.terminal.peak import render_heaviest
from pytest_gpuleak.reports.terminal.section import render_codes, render_leaks
from pytest_gpuleak.reports.terminal.summary import render_dearest, render_usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.cli.compare import Change, Comparison
    from pytest_gpuleak.model.records import RunReport

FORMATS = {**{module: suffix for suffix, module in WRITERS.items()}, "gitlab": ".codequality.json"}
"""The formats by name, each with the suffix of a path that selects it."""

STREAM = "-"

MAX_CHANGES = 1_000

_PEAKS_SHOWN = 20


class Unusable(click.ClickException):
    """Input or output that cannot be used: one line, and exit status 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002 - click's signature
        """Write the line to standard error."""
        say([f"gpuleak: {self.message}"], error=True)


def say(lines: Iterable[str], *, error: bool = False) -> None:
    """Write lines, in colour to a terminal without ``NO_COLOR`` (no-color.org). A reader that has gone is no error."""
    stream: TextIO | None = sys.stderr if error else sys.stdout
    if stream is None:  # closed before the program started
        return
    encoding = stream.encoding or "ascii"
    text = "".join(f"{line}\n" for line in lines).encode(encoding, "backslashreplace").decode(encoding)
    try:
        click.echo(text, nl=False, err=error, color=False if os.environ.get("NO_COLOR") else None)
    except BrokenPipeError:
        _silence()


def _silence() -> None:
    """Discard further output: the interpreter flushes its streams once more when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def width() -> int:
    """Return the columns to write for."""
    return shutil.get_terminal_size((80, 24)).columns


def render_report(report: RunReport, verbosity: int) -> list[str]:
    """Write a report as the end of a pytest run does."""
    columns = width()
    leaks = render_leaks(report, verbosity=verbosity, width=columns)
    lines: list[str] = []
    if leaks and verbosity >= 0:
        lines.append(f"{' GPU LEAKS ':=^{columns}}")
    lines += map(_styled, leaks)
    if verbosity >= 0:
        lines += [*render_codes(report), *render_usage(report, width=columns), *render_dearest(report, width=columns)]
        more = "gpu-leak: and {} more stale"
        lines += first_lines(report.stale, STALE_SHOWN, lambda one: f"gpu-leak: stale: {render_entry(one)}", more)
        lines += map(_styled, _render_peaks(report, columns))
    for name, write in closing_steps(report.summary, report, Shown(verbosity, columns)):
        lines += map(_styled, isolated(write, why_not_shown(name)))
    return lines


_COLOURS = {CutLine: "yellow", BadLine: "red"}


def _render_peaks(report: RunReport, columns: int) -> list[str]:
    peaks = [(test.nodeid, test.peak) for test in report.tests if test.peak is not None]
    return [f"{' PEAKS ':=^{columns}}", *render_heaviest(peaks, _PEAKS_SHOWN)] if peaks else []


def _styled(line: str) -> str:
    if type(line) is TitleLine:
        return click.style(line, fg="red") if line.startswith("LEAKED ") else click.style(line, bold=True)
    if type(line) in _COLOURS:
        return click.style(line, fg=_COLOURS[type(line)])
    return click.style(line, dim=True) if type(line) is DimLine else line


def render_comparison(found: Comparison) -> list[str]:
    """Write changes, worst first."""
    lines: list[str] = []

    def tell(word: str, colour: str | None, entries: Sequence[tuple[str, str]]) -> None:
        for place, line in entries[:MAX_CHANGES]:
            head = f"{word:<7} {clean_text(place, ID_LIMIT)}"
            lines.extend([click.style(head, fg=colour) if colour else head, f"        {line}"])
        if len(entries) > MAX_CHANGES:
            lines.append(f"{word:<7} and {len(entries) - MAX_CHANGES} more")

    tell("NEW", "red", [(leak.place, render_line(leak.finding)) for leak in found.new])
    tell("GROWN", "red", list(map(_change, found.grown)))
    tell("SHRUNK", None, list(map(_change, found.shrunk)))
    tell("GONE", "green", [(leak.place, render_line(leak.finding)) for leak in found.gone])
    unseen = [f"{clean_text(leak.place, ID_LIMIT)}: not run or not checked" for leak in found.unseen]
    lines += first_lines(unseen, MAX_CHANGES, "UNSEEN  {}".format, "UNSEEN  and {} more")
    verdicts = [f"{clean_text(nodeid, ID_LIMIT)}: {old} -> {new}" for nodeid, old, new in found.verdicts]
    lines += first_lines(verdicts, MAX_CHANGES, "VERDICT {}".format, "VERDICT and {} more")
    leaks = {"new": found.new, "grown": found.grown, "shrunk": found.shrunk, "gone": found.gone, "unseen": found.unseen}
    parts = [f"{len(some)} {name}" for name, some in leaks.items() if some or name in ("new", "gone")]
    tests = f"{count_of(found.added, 'test')} added, {found.removed} removed"
    changed = count_of(len(found.verdicts), "verdict")
    return [*lines, f"gpu-leak: leaks: {', '.join(parts)}; {changed} changed; {tests}"]


def _change(change: Change) -> tuple[str, str]:
    sizes = f"{format_bytes(change.old.bytes)} -> {format_bytes(change.new.bytes)}"
    return change.new.place, f"{sizes}; {render_line(change.new.finding)}"


def choose_format(target: str, named: str | None) -> str:
    """Return the format of an output. Raises Unusable where it is unknown or the path cannot be written."""
    if target == STREAM:
        return named or "json"
    path = Path(target)
    if named is None and target.lower().endswith(FORMATS["gitlab"]):
        named = "gitlab"
    # With a named format any suffix will do, so only the folder is checked.
    folder = named is not None and not path.is_dir()
    why = why_not_accepted(path.with_name(path.name + ".json") if folder else path)
    if why is not None:
        refuse(f"{clean_text(target, ID_LIMIT)} {why}")
    return named or WRITERS[path.suffix.lower()]


def write_output(report: RunReport, target: str, form: str) -> None:
    """Write a report in a format, to a file in one step or to standard output. Raises Unusable on failure."""
    try:
        text = render(report, form)
        if target == STREAM:
            _print(text)
        else:
            write_text(text, Path(target))
    except OSError as error:
        refuse(f"{clean_text(target, ID_LIMIT)} could not be written ({error.strerror or error})")
    except (TypeError, ValueError) as error:
        refuse(f"{clean_text(target, ID_LIMIT)} could not be written ({clean_text(str(error), TEXT_LIMIT)})")


def _print(text: str) -> None:
    if sys.stdout is None:  # closed before the program started
        raise OSError("standard output is closed")
    try:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _silence()


def refuse(message: str) -> NoReturn:
    """End the command with one line and exit status 2."""
    raise Unusable(message)

"""Show the end of a run in the terminal: the section GPU LEAKS, the summary line, and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports.terminal.closing import Shown, closing_steps, render_init
from pytest_gpuleak.reports.terminal.lines import MARKUP, TEXT_LIMIT
from pytest_gpuleak.session.pytest_internals import ELSEWHERE, colour_red

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import RunReport
    from pytest_gpuleak.session.closing import Run


def show_run(run: Run, terminalreporter: Any) -> None:
    """Show the leaks, the summary line, and errors of reports, for a run that was closed."""
    ledger = run.ledger
    if ledger.found or run.check.settings.top or run.check.baseline is not None:
        report = ledger.report(run.check.settings, run.check.mode, on_file=False)
        summary = report.summary
        run.attempt("showing the leaks", lambda: _show_findings(run, report, terminalreporter), None)
        if ledger.fixture_leaked and not run.check.settings.warn:
            run.attempt("colouring the last line", lambda: colour_red(run.check.config), None)
    else:
        summary = ledger.summary(run.check.settings, on_file=False)
    closing: list[str] = []
    for name, write in closing_steps(summary, ledger, _shown(run, terminalreporter)):
        closing += run.lines(name, write)
    for fault in dict.fromkeys([*run.check.attempts.lines, *run.faults]):
        terminalreporter.line(f"gpu-leak: {clean_text(fault, TEXT_LIMIT)}")
    if summary.get("unchecked"):
        run.attempt("counting the notebooks", lambda: _show_notebooks(run, terminalreporter), None)
    _write(closing, terminalreporter)
    for error in run.errors:
        terminalreporter.line(error, red=True)
    for line in run.published:
        terminalreporter.line(line)


def show_first_init(run: Run, terminalreporter: Any) -> None:
    """Show who initialised a device first, where no test runs."""
    found, shown = run.ledger.facts.first_init, _shown(run, terminalreporter)
    what = "showing who initialised a device first"
    _write(run.lines(what, lambda: render_init(found, shown)), terminalreporter)


def _shown(run: Run, terminalreporter: Any) -> Shown:
    verbosity, width = int(run.check.config.option.verbose), terminalreporter._tw.fullwidth
    settings = run.check.settings
    return Shown(verbosity, width, bool(settings.report_paths), run.fails_by_init, settings.strict)


def _write(lines: list[str], terminalreporter: Any) -> None:
    for line in lines:
        terminalreporter.line(line, **MARKUP.get(type(line), {}))


def _show_notebooks(run: Run, terminalreporter: Any) -> None:
    number = sum(test.why_unchecked == ELSEWHERE for test in run.ledger.tests)
    if number:
        were = "notebook was not checked: it runs" if number == 1 else "notebooks were not checked: each runs"
        advice = "use `with pytest_gpuleak.watch()` in a cell"
        terminalreporter.line(f"gpu-leak: {number} {were} in a process of its own, its kernel; {advice}")


SUMMARISED = {"f": "failed", "E": "error", "x": "xfailed", "X": "xpassed", "s": "skipped", "p": "passed"}
"""The reports that pytest's short summary lists for each letter of ``-r`` (`TerminalReporter.short_test_summary`)."""


def show_short_summary(run: Run, terminalreporter: Any) -> None:
    """Write a line a leak below pytest's short test summary, where ``-r`` asks for failures, but not ``-q``."""
    letters = str(getattr(terminalreporter, "reportchars", ""))
    option = run.check.config.option
    if int(option.verbose) < 0 or getattr(option, "no_summary", False) or not ("f" in letters or "L" in letters):
        return
    every = "L" in letters or int(option.verbose) > 0
    lines = run.lines("adding to the short test summary", lambda: _short_summary(run, every=every))
    if not lines:
        return
    if not any(terminalreporter.stats.get(SUMMARISED[letter]) for letter in letters if letter in SUMMARISED):
        terminalreporter.write_sep("=", "short test summary info", cyan=True, bold=True)
    for line in lines:
        word, _, rest = line.partition(" ")
        terminalreporter.write_line(f"{terminalreporter._tw.markup(word, **{_colour(run): True})} {rest}")


def _colour(run: Run) -> str:
    """Return the colour of what leaked: red fails the run."""
    return "yellow" if run.check.settings.warn else "red"


def _short_summary(run: Run, *, every: bool) -> list[str]:
    from pytest_gpuleak.reports.terminal.short_summary import render_short_summary

    ledger = run.ledger
    if not ledger.found:
        return []
    return render_short_summary(ledger.tests, ledger.fixtures, every=every)


def _show_findings(run: Run, report: RunReport, terminalreporter: Any) -> None:
    from pytest_gpuleak.reports.terminal.section import render_codes, render_leaks

    verbosity, width = int(run.check.config.option.verbose), terminalreporter._tw.fullwidth
    lines = run.lines("showing the leaks", lambda: render_leaks(report, verbosity=verbosity, width=width))
    if lines and verbosity >= 0:
        leaked = report.summary["leaked"] > 0 or run.ledger.fixture_leaked
        terminalreporter.section("GPU LEAKS", **{_colour(run): leaked})
    if verbosity >= 0:
        lines += run.lines("showing the codes", lambda: render_codes(report))
    # Also with `-q`, as pytest does with `--durations`: they were asked for.
    lines += run.lines("showing the heaviest tests", lambda: _usage_lines(run, report, width))
    baseline = run.check.baseline
    if baseline is not None:
        lines += run.lines("showing the baseline", lambda: baseline.render(report, verbosity=verbosity))
    _write(lines, terminalreporter)


def _usage_lines(run: Run, report: RunReport, width: int) -> list[str]:
    from pytest_gpuleak.reports.terminal.summary import render_clean_up_calls, render_dearest, render_usage

    clean_up = render_clean_up_calls(report.summary, run.check.settings.top, width=width)
    return [*render_usage(report, width=width), *render_dearest(report, width=width), *clean_up]

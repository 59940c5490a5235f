"""Show the end of a run in the terminal: the section GPU LEAKS, the summary line, and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports.terminal.lines import MARKUP, TEXT_LIMIT
from pytest_gpuleak.reports.terminal.summary import (
    render_clean_up,
    render_faults,
    render_lost_devices,
    render_summary,
)
from pytest_gpuleak.session.closing import nothing
from pytest_gpuleak.session.leak_check import ELSEWHERE
from pytest_gpuleak.session.pytest_internals import colour_red

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import RunReport
    from pytest_gpuleak.session.closing import Run


def show_run(run: Run, terminalreporter: Any) -> None:
    """Show the leaks, the summary line, and errors of reports, for a run that was closed."""
    ledger = run.ledger
    if ledger.found or run.settings.top or run.baseline is not None:
        report = ledger.report(run.settings, run.check.mode, on_file=False)
        summary = report.summary
        run.attempt("showing the leaks", lambda: _show_findings(run, report, terminalreporter), nothing)
        if ledger.fixture_leaked and not run.settings.warn:
            run.attempt("colouring the last line", lambda: colour_red(run.config), nothing)
    else:
        summary = ledger.summary(run.settings, on_file=False)
    last = run.attempt("counting the tests", lambda: render_summary(summary), lambda: "gpu-leak: no counts")
    for fault in dict.fromkeys([*run.lines, *run.faults]):
        terminalreporter.line(f"gpu-leak: {clean_text(fault, TEXT_LIMIT)}")
    if run.settings.wait_s is not None:
        run.attempt("showing what stays on devices", lambda: _show_waits(run, terminalreporter), nothing)
    _show_clean_up_and_lost_devices(run, summary, terminalreporter)
    if summary.get("unchecked"):
        run.attempt("counting the notebooks", lambda: _show_notebooks(run, terminalreporter), nothing)
    terminalreporter.line(last)
    show_first_init(run, terminalreporter)
    if ledger.failed_to_check:
        _show_faults(run, terminalreporter)
    if ledger.incomplete is not None and run.settings.report_paths:
        terminalreporter.line(f"gpu-leak: THE REPORT IS INCOMPLETE: {ledger.incomplete}", red=True, bold=True)
    for error in run.errors:
        terminalreporter.line(error, red=True)
    for line in run.published:
        terminalreporter.line(line)


def show_first_init(run: Run, terminalreporter: Any) -> None:
    """Show who initialised a device first: where it fails the run, breaks processes that tests fork, or with ``-v``."""
    found = run.ledger.facts.first_init
    if found is None:
        return

    def show() -> None:
        from pytest_gpuleak.reports.terminal.first_init import is_shown, render_first_init

        if run.fails_by_init:
            line = f"{render_first_init(found)}; the run fails (--gpu-leak-no-init-at-collection)"
            terminalreporter.line(line, red=True)
        elif is_shown(found, int(run.config.option.verbose)):
            terminalreporter.line(render_first_init(found))

    run.attempt("showing who initialised a device first", show, nothing)


def _show_waits(run: Run, terminalreporter: Any) -> None:
    from pytest_gpuleak.reports.terminal.device_waits import render_waits

    for line in render_waits(run.ledger.tests, width=terminalreporter._tw.fullwidth):
        terminalreporter.line(line)


def _show_clean_up_and_lost_devices(run: Run, summary: dict[str, Any], terminalreporter: Any) -> None:
    clean_up = run.attempt("showing the suite's clean-up", lambda: render_clean_up(summary), lambda: None)
    if clean_up is not None:
        terminalreporter.line(clean_up)
    lost: list[str] = run.attempt("showing the lost devices", lambda: render_lost_devices(summary), list)
    for line in lost:
        terminalreporter.line(line, red=True)


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
    option = run.config.option
    if int(option.verbose) < 0 or getattr(option, "no_summary", False) or not ("f" in letters or "L" in letters):
        return
    every = "L" in letters or int(option.verbose) > 0
    lines: list[str] = run.attempt("adding to the short test summary", lambda: _short_summary(run, every=every), list)
    if not lines:
        return
    if not any(terminalreporter.stats.get(SUMMARISED[letter]) for letter in letters if letter in SUMMARISED):
        terminalreporter.write_sep("=", "short test summary info", cyan=True, bold=True)
    for line in lines:
        word, _, rest = line.partition(" ")
        terminalreporter.write_line(f"{terminalreporter._tw.markup(word, **{_colour(run): True})} {rest}")


def _colour(run: Run) -> str:
    """Return the colour of what leaked: red fails the run."""
    return "yellow" if run.settings.warn else "red"


def _short_summary(run: Run, *, every: bool) -> list[str]:
    from pytest_gpuleak.reports.terminal.short_summary import render_short_summary

    ledger = run.ledger
    if not ledger.found:
        return []
    return render_short_summary(ledger.tests, ledger.fixtures, every=every)


def _show_findings(run: Run, report: RunReport, terminalreporter: Any) -> None:
    verbosity, width = int(run.config.option.verbose), terminalreporter._tw.fullwidth
    lines: list[str] = run.attempt("showing the leaks", lambda: _leak_lines(report, verbosity, width), list)
    if lines and verbosity >= 0:
        leaked = report.summary["leaked"] > 0 or run.ledger.fixture_leaked
        terminalreporter.section("GPU LEAKS", **{_colour(run): leaked})
    if verbosity >= 0:
        lines += run.attempt("showing the codes", lambda: _code_lines(report), list)
    # Also with `-q`, as pytest does with `--durations`: they were asked for.
    lines += run.attempt("showing the heaviest tests", lambda: _usage_lines(run, report, width), list)
    baseline = run.baseline
    if baseline is not None:
        lines += run.attempt("showing the baseline", lambda: baseline.render(report, verbosity=verbosity), list)
    for line in lines:
        terminalreporter.line(line, **MARKUP.get(type(line), {}))


def _leak_lines(report: RunReport, verbosity: int, width: int) -> list[str]:
    from pytest_gpuleak.reports.terminal.section import render_leaks

    return render_leaks(report, verbosity=verbosity, width=width)


def _code_lines(report: RunReport) -> list[str]:
    from pytest_gpuleak.reports.terminal.section import render_codes

    return render_codes(report)


def _usage_lines(run: Run, report: RunReport, width: int) -> list[str]:
    from pytest_gpuleak.reports.terminal.summary import render_clean_up_calls, render_dearest, render_usage

    clean_up = render_clean_up_calls(report.summary, run.settings.top, width=width)
    return [*render_usage(report, width=width), *render_dearest(report, width=width), *clean_up]


def _show_faults(run: Run, terminalreporter: Any) -> None:
    strict = run.settings.strict
    line = render_faults(run.ledger.tests, run.ledger.faults)
    if line is not None:
        colour = {"red": True} if strict else {"yellow": True}
        terminalreporter.line(f"{line}{'; the run fails (--gpu-leak-strict)' if strict else ''}", **colour)

"""The commands of `gpuleak`. Exit status: 0 all is well, 1 leaks or other bad news, 2 unusable input or options."""

# ruff: noqa: D301 - click keeps the lines of a paragraph that begins with a backspace, which is an escape, as they are

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pytest_gpuleak.baseline.file import load_baseline
from pytest_gpuleak.baseline.peaks import DEFAULT_TOLERANCE as PEAK_TOLERANCE
from pytest_gpuleak.baseline.peaks import load_peaks
from pytest_gpuleak.cli.compare import TOLERANCE, compare_reports, keep_failing, keep_leak
from pytest_gpuleak.cli.merge import Merger
from pytest_gpuleak.cli.output import (
    FORMATS,
    STREAM,
    choose_format,
    refuse,
    render_comparison,
    render_report,
    say,
    write_output,
)
from pytest_gpuleak.cli.peaks import compare_peaks, hold_to_peaks, render_peaks
from pytest_gpuleak.model.isolation import describe_error
from pytest_gpuleak.model.summary import count_known
from pytest_gpuleak.model.text import clean_text, count_of
from pytest_gpuleak.model.version import __version__
from pytest_gpuleak.reports.json.read import UnusableReport, read_report
from pytest_gpuleak.reports.source_places import findings_of
from pytest_gpuleak.reports.terminal.lines import TEXT_LIMIT
from pytest_gpuleak.reports.terminal.summary import render_faults, render_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuleak.baseline.file import Baseline
    from pytest_gpuleak.baseline.peaks import Peaks
    from pytest_gpuleak.model.records import RunReport

_T = TypeVar("_T")

_SOURCE = click.Path(allow_dash=True)
_FINGERPRINT = re.compile(r"[0-9a-fA-F]{4,128}")


class _Commands(click.Group):
    """Turn every error into one line and exit status 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except OSError as error:  # readers raise errors of their own for bad content
            refuse(f"the output could not be written ({clean_text(error.strerror or str(error), TEXT_LIMIT)})")
        except Exception as error:  # noqa: BLE001 - a user of CI can do nothing with a traceback of ours
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = clean_text(f"{Path(place.filename).name}:{place.lineno}", TEXT_LIMIT)
            refuse(f"a fault of its own: {describe_error(error)} at {where}; please report it, with the command")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gpuleak")
def main() -> None:
    """Read the JSON reports of `pytest --gpu-leak --gpu-leak-report report.json`, and explain the codes in them.

    A REPORT is a file, or - for standard input.

    \b
    gpuleak show report.json                                what leaked, and who holds it
    gpuleak diff main.json branch.json                      what is new, gone, grown
    gpuleak gate shard*.json --baseline gpu-leaks.toml      the verdict of a CI job
    gpuleak merge shard*.json -o all.json                   shards, ranks and retries as one
    gpuleak convert all.json -o all.html                    another format
    gpuleak explain GL101                                   the page of a finding's code
    """


def _output_options(command: Any) -> Any:
    command = click.option(
        "--format", "form", type=click.Choice(list(FORMATS)), help="Format of OUT; by default its suffix says it."
    )(command)
    suffixes = ", ".join(FORMATS.values())
    return click.option(
        "-o", "--output", "target", metavar="OUT", required=True, type=_SOURCE,
        help=f"The file to write ({suffixes}), or - for standard output, which is JSON unless --format says otherwise.",
    )(command)  # fmt: skip


@main.command()
@click.argument("report", type=_SOURCE)
@click.option("-v", "--verbose", "verbosity", count=True, help="Show what is noted and allowed too, and every step.")
@click.option("-q", "--quiet", is_flag=True, help="One line a leak.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="For people or for programs: the report itself, reduced to what fails. With -v all findings.",
)  # fmt: skip
def show(report: str, verbosity: int, quiet: bool, form: str) -> None:
    """Show REPORT as the end of a pytest run does.

    \b
    gpuleak show report.json
    gpuleak show --format json report.json                  each finding, with `edit`: the file and line to cut
    unzip -p artifact.zip report.json | gpuleak show -v -

    \b
    Exit status: 0, or 2 for a report that cannot be read.
    """
    if form == "json":
        if quiet:
            raise click.UsageError("--quiet: only --format text can be shortened; leave out one of the two")
        found = _read(report)
        write_output(found if verbosity else keep_failing(found), STREAM, form)
        return
    say(render_report(_read(report), -1 if quiet else verbosity))


@main.command()
@click.argument("old", type=_SOURCE)
@click.argument("new", type=_SOURCE)
@click.option(
    "--tolerance", type=click.FloatRange(0), default=TOLERANCE * 100, show_default=True, metavar="PERCENT",
    help="By how much a leak may grow or shrink and count as the same.",
)  # fmt: skip
@click.option(
    "--peak-tolerance", type=click.FloatRange(0), default=PEAK_TOLERANCE * 100, show_default=True, metavar="PERCENT",
    help="By how much a test's peak may grow or shrink and count as the same.",
)  # fmt: skip
def diff(old: str, new: str, tolerance: float, peak_tolerance: float) -> None:
    """Tell what has changed from OLD to NEW: leaks that are new, grown, shrunk or gone, peaks, and other verdicts.

    A leak is the same where its test, device and fingerprint are. Known leaks of a baseline count as leaks. A leak whose
    test was not run or not checked in NEW is not gone, but UNSEEN. Of tests whose peaks both reports have (--gpu-leak-peaks)
    it is told which have grown, and what grew: by purpose, line and module.

    \b
    gpuleak diff main.json branch.json

    \b
    Exit status: 0 nothing new or grown, 1 something is, 2 a report cannot be read.
    """
    _check_sources((old, new))
    before, after = _read(old), _read(new)
    found = compare_reports(before, after, tolerance / 100)
    peaks = compare_peaks(before, after, peak_tolerance / 100)
    say([*render_comparison(found), *render_peaks(peaks, peak_tolerance / 100)])
    for name, report in ((old, before), (new, after)):
        if report.incomplete is not None:
            why = clean_text(report.incomplete, TEXT_LIMIT)
            say([f"gpu-leak: {clean_text(name, TEXT_LIMIT)} is incomplete: {why}"])
    sys.exit(int(found.is_worse or bool(peaks.grown)))


@main.command()
@click.argument("reports", nargs=-1, required=True, type=_SOURCE, metavar="REPORT...")
@click.option("--baseline", type=click.Path(), metavar="FILE", help="Known leaks, which pass until they grow (TOML).")
@click.option("--peaks", "peaks_file", type=click.Path(), metavar="FILE", help="Peaks that may not grow (TOML).")
@click.option("--fail-stale", is_flag=True, help="Fail where the baseline lists a leak that is gone.")
@click.option("--strict", is_flag=True, help="Fail where the check itself, or a user's hook, failed.")
@click.option("--only", metavar="FINGERPRINT", help="Judge this leak alone, by the first digits of its fingerprint.")
@click.option("-v", "--verbose", "verbosity", count=True, help="Show what is known, noted and allowed too.")
def gate(  # noqa: PLR0913 - click calls it with each option
    reports: Sequence[str],
    baseline: str | None,
    peaks_file: str | None,
    fail_stale: bool,
    strict: bool,
    only: str | None,
    verbosity: int,
) -> None:
    """Judge one run, given as one or more REPORTs, and fail for leaks, and for peaks that have grown.

    The reports are merged as `merge` does. Leaks that FILE lists are known and pass; without it, what the runs themselves
    called known does. A run that is incomplete fails: the tests that are missing may leak. So does one without any test.
    With --peaks the peaks that the reports have (--gpu-leak-peaks) are held to a file that --gpu-leak-update-peaks wrote.

    \b
    gpuleak gate report.json --baseline gpu-leaks.toml
    gpuleak gate artifacts/shard-*.json --baseline gpu-leaks.toml --fail-stale
    gpuleak gate report.json --only 1d06a442                for `git bisect run`

    \b
    Exit status: 0 clean, 1 leaks or tests missing, 2 a report or the baseline cannot be used. With --only: 0 the leak is
    not there, 1 it is, 2 it cannot be told, since tests are missing or were not checked.
    """
    if only is not None:
        sys.exit(_look_for(only, _merge(reports), verbosity))
    known: Baseline | None = None if baseline is None else _load_baseline(baseline, load_baseline)
    peaks: Peaks | None = None if peaks_file is None else _load_baseline(peaks_file, load_peaks)
    report = _merge(reports)
    if known is not None:
        from pytest_gpuleak.baseline.update import apply_baseline

        report = apply_baseline(report, known)
    reasons = _reasons(report, listed=known is not None, fail_stale=fail_stale)
    faults = render_faults(report.tests, report.faults) if strict else None
    reasons += [] if faults is None else [faults.removeprefix("gpu-leak: ")]
    lines = render_report(report, verbosity)
    if peaks is not None:
        held = hold_to_peaks(report, peaks)
        lines += render_peaks(held, peaks.tolerance)
        reasons += [f"{count_of(len(held.grown), 'peak')} grown beyond what the file has"] if held.grown else []
    if reasons:
        lines += [click.style(f"gate: FAILED: {reason}", fg="red") for reason in reasons]
    else:
        known_leaks = count_known(report.tests, report.fixtures)
        passed = f"no new leaks, {count_of(known_leaks, 'known leak')}" if known_leaks else "no leaks"
        lines.append(click.style(f"gate: passed: {passed}; {count_of(len(report.tests), 'test')}", fg="green"))
    say(lines)
    sys.exit(int(bool(reasons)))


@main.command()
@click.argument("reports", nargs=-1, required=True, type=_SOURCE, metavar="REPORT...")
@_output_options
def merge(reports: Sequence[str], target: str, form: str | None) -> None:
    """Merge REPORTs of shards, ranks or retries into one.

    Of a test in several reports, or run several times in one, what was found stays found: the gravest verdict counts
    (leaked, allowed, noted, clean, unchecked), of equals the later report's, and findings are united. So name retries last.
    A merged report is incomplete where one of its parts is.

    \b
    gpuleak merge shard-1.json shard-2.json -o report.json
    gpuleak merge report.rank*.json -o - | gpuleak show -

    \b
    Exit status: 0, or 2 for a report that cannot be read or written.
    """
    form = choose_format(target, form)
    merged = _merge(reports)
    write_output(merged, target, form)
    say([f"merged {count_of(len(reports), 'report')}; {render_summary(merged.summary)}"], error=True)
    if merged.incomplete is not None:
        say([f"incomplete: {clean_text(merged.incomplete, TEXT_LIMIT)}"], error=True)


@main.command()
@click.argument("report", type=_SOURCE)
@_output_options
def convert(report: str, target: str, form: str | None) -> None:
    """Write REPORT in another format.

    \b
    gpuleak convert report.json -o report.html
    gpuleak convert report.json -o gl.codequality.json      for GitLab
    gpuleak convert report.json --format markdown -o - >> "$GITHUB_STEP_SUMMARY"

    \b
    Exit status: 0, or 2 for a report that cannot be read or written.
    """
    form = choose_format(target, form)
    write_output(_read(report), target, form)


@main.command()
@click.argument("codes", nargs=-1, metavar="[CODE...]")
def explain(codes: Sequence[str]) -> None:
    """Print the page of each CODE, which stands behind a finding's fix; without one, list all codes.

    A page has the pattern, why it keeps memory, the edit that frees it, and public libraries that had it.

    \b
    gpuleak explain                                         all codes
    gpuleak explain GL101

    \b
    Exit status: 0, or 2 for a code that is not known.
    """
    from pytest_gpuleak.model.codes.table import CODES, TOPICS, page

    unknown = [code for code in codes if code.upper() not in CODES]
    if unknown:
        shown = clean_text(repr(unknown[0]), TEXT_LIMIT)
        refuse(f"{shown} is not accepted, only a code such as GL101: `gpuleak explain` lists all {len(CODES)}")
    if codes:
        say("\n".join(page(CODES[code.upper()]) for code in codes).splitlines())
        return
    for topic, rows in TOPICS.items():
        say([topic, *[f"  {code.id}  {code.title}" for code in rows]])


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and files.

    \b
    gpuleak completion bash > ~/.local/share/bash-completion/completions/gpuleak
    gpuleak completion zsh > "${fpath[1]}/_gpuleak"
    gpuleak completion fish > ~/.config/fish/completions/gpuleak.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:  # this click does not know the shell
        refuse(f"this version of click completes nothing in {shell}")
    template = found(main, {}, "gpuleak", "_GPULEAK_COMPLETE")
    # Not source(): it asks this machine's bash, while another one may read the script.
    say([template.source_template % template.source_vars()])


def _read(source: str) -> RunReport:
    try:
        return read_report("-" if source == STREAM else Path(source))
    except UnusableReport as error:
        refuse(str(error))


def _merge(sources: Sequence[str]) -> RunReport:
    _check_sources(sources)
    merger = Merger()
    for source in _with_progress(sources):
        merger.add(_read(source), "standard input" if source == STREAM else clean_text(source, TEXT_LIMIT))
    return merger.report()


def _with_progress(sources: Sequence[str]) -> Iterator[str]:
    if len(sources) < 2 or not sys.stderr.isatty():
        yield from sources
        return
    with click.progressbar(sources, label="reading reports", file=sys.stderr) as bar:
        yield from bar


def _check_sources(sources: Sequence[str]) -> None:
    if list(sources).count(STREAM) > 1:
        raise click.UsageError("standard input (-) can be read once")


def _load_baseline(path: str, load: Callable[[Path], _T]) -> _T:
    from pytest_gpuleak.baseline.toml_file import UnusableBaseline

    try:
        return load(Path(path))
    except (UnusableBaseline, OSError) as error:
        refuse(clean_text(str(error), 4 * TEXT_LIMIT))


def _look_for(digits: str, report: RunReport, verbosity: int) -> int:
    if _FINGERPRINT.fullmatch(digits) is None:
        raise click.UsageError(
            f"--only: {clean_text(repr(digits), TEXT_LIMIT)} is no fingerprint, only 4 hexadecimal digits or more are"
        )
    report = keep_leak(report, digits.lower())
    count = len(findings_of(report))
    unchecked = sum(test.verdict == "unchecked" for test in report.tests)
    say(render_report(report, max(verbosity, 1)) if count else [])
    if count:
        say([f"{digits}: found, {count_of(count, 'finding')}"])
        return 1
    if report.incomplete is not None or not report.tests or unchecked:
        too_few = f"{count_of(unchecked, 'test')} not checked" if unchecked else "no test was run"
        say([f"{digits}: cannot be told: {clean_text(report.incomplete or too_few, TEXT_LIMIT)}"])
        return 2
    say([f"{digits}: not found; {count_of(len(report.tests), 'test')}"])
    return 0


def _reasons(report: RunReport, *, listed: bool, fail_stale: bool) -> list[str]:
    reasons = []
    failed = [{found.kind == "budget" for found in test.findings if found.failed} for test in report.tests]
    tests = sum(test.verdict == "leaked" or False in kinds for test, kinds in zip(report.tests, failed, strict=True))
    heavy = sum(True in kinds for kinds in failed)
    fixtures = sum(any(found.failed for found in fixture.findings) for fixture in report.fixtures)
    parts = [count_of(number, noun) for number, noun in ((tests, "test"), (fixtures, "fixture")) if number]
    if parts:
        leaks = "leaks" if tests + fixtures == 1 else "leak"
        reasons.append(f"{' and '.join(parts)} {leaks}{' beyond what the baseline lists' if listed else ''}")
    if heavy:
        reasons.append(f"{count_of(heavy, 'test')} over {'its' if heavy == 1 else 'their'} budget or peak")
    if report.incomplete is not None:
        reasons.append(f"tests are missing: {clean_text(report.incomplete, TEXT_LIMIT)}")
    if not report.tests:
        reasons.append("no test was run")
    if fail_stale and report.stale:
        entries, are = ("1 entry", "is") if len(report.stale) == 1 else (f"{len(report.stale)} entries", "are")
        reasons.append(f"{entries} of the baseline {are} stale: take out what is gone")
    return reasons

"""A run with peaks: what its tests told, the file of peaks, and what is shown at the end. xdist's controller has it too."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.baseline.peaks import LEAST, Made, Peaks, dump_peaks, load_peaks, parse_peaks, update_peaks
from pytest_gpuleak.model.text import clean_text, format_bytes
from pytest_gpuleak.reports.atomic_write import write_text
from pytest_gpuleak.reports.terminal.lines import MARKUP, first_lines
from pytest_gpuleak.session.config.given_values import find_given, read_value
from pytest_gpuleak.session.features.baseline import SHOWN_PATH, read_file
from pytest_gpuleak.session.features.budgets.over_budget import ShowsExcess
from pytest_gpuleak.session.features.peaks.hooks import PEAK_ATTRIBUTE, PeakHooks
from pytest_gpuleak.session.features.peaks.ratchet import Ratchet, decode_entry
from pytest_gpuleak.session.peak_hooks import shared_meter
from pytest_gpuleak.session.pytest_internals import runs_nothing
from pytest_gpuleak.session.surroundings import rank_of

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.model.peak_parts import Peak

PEAKS_KEY = "gpu_leak_peaks"
"""Key of the file of peaks, as text, in xdist's ``workerinput``."""

_LISTED = 20


def open_peaks(config: pytest.Config) -> PeakRun | None:
    """Read the options and the file of peaks. Raises pytest.UsageError for what cannot be used; None: none is asked for."""
    number = read_value(config, "peaks") or 0
    given, updating = find_given(config, "peaks_baseline"), bool(read_value(config, "update_peaks"))
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    path = None if given is None or given.value is None else given.folder / given.value
    tolerance = read_value(config, "peaks_tolerance")
    if path is None:
        if updating and worker is None:
            raise pytest.UsageError(
                "--gpu-leak-update-peaks: there is no file of peaks; name it with --gpu-leak-peaks-baseline=PATH"
            )
        return PeakRun(config, number, None, Peaks(), updating=False) if number else None
    if worker is not None and PEAKS_KEY in worker:
        peaks = parse_peaks(worker[PEAKS_KEY])
    else:
        peaks = read_file(config, "peaks_baseline", path, load_peaks, updating=updating) or Peaks()
    if tolerance is not None:
        peaks = dataclasses.replace(peaks, tolerance=tolerance)
    return PeakRun(config, number, path, peaks, updating=updating)


class PeakRun(ShowsExcess):
    """The peaks of one session: of this process, and of xdist's workers."""

    def __init__(self, config: pytest.Config, number: int, path: Path | None, peaks: Peaks, *, updating: bool) -> None:
        self._config = config
        self._number = number
        self._path = path
        self._peaks = peaks
        self._updating = updating
        self._is_worker = hasattr(config, "workerinput")
        self._told: dict[str, dict[str, Any]] = {}  # by nodeid: of several attempts of a test the last counts
        self._any_ran = False
        self._lines: list[str] = []
        self._error = ""

    @property
    def _file(self) -> str:
        return "" if self._path is None else clean_text(self._path.name, SHOWN_PATH)

    def hold_tests(self) -> None:
        """Register the hooks that run tests again, in a process that runs tests."""
        warn = self._path is not None and bool(read_value(self._config, "warn"))
        ratchet = Ratchet(self._config, self._peaks, self._file, updating=self._updating, warn=warn)
        hooks = PeakHooks(shared_meter(self._config), self._number, ratchet)
        self._config.pluginmanager.register(hooks, "gpuleak-peak-hooks")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send the file to a worker, before it starts."""
        if self._path is not None:
            node.workerinput[PEAKS_KEY] = dump_peaks(self._peaks)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a test has told of its peak."""
        if report.when == "teardown":
            self._any_ran = True
            told = getattr(report, PEAK_ATTRIBUTE, None)
            if told is not None:
                self._told[report.nodeid] = told

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the file if that is asked for; a file that could not be written fails the run."""
        if self._is_worker or not self._updating or self._path is None or runs_nothing(self._config):
            return
        self._error = self._why_not_updated(session, exitstatus) or self._update(self._path)
        if self._error and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _why_not_updated(self, session: pytest.Session, exitstatus: int) -> str:
        why = ""
        if exitstatus == pytest.ExitCode.INTERRUPTED or session.shouldstop or session.shouldfail:
            why = "the run is incomplete"
        elif not self._any_ran:
            why = "no test ran"
        elif not any(told.get("state") == "measured" for told in self._told.values()):
            why = "no test has a peak that could be measured"
        return f"gpu-leak: the file of peaks {self._file} was not updated: {why}" if why else ""

    def _update(self, path: Path) -> str:
        measured = [told for told in self._told.values() if told.get("state") == "measured"]
        entries = [decode_entry(told["entry"]) for told in measured]
        made = [Made(*told["made"]) for told in measured]
        found = Made(made[0].torch, next((one.gpu for one in made if one.gpu), ""))
        anew = bool(self._peaks.entries) and self._peaks.made != found
        told_of = {nodeid for nodeid, told in self._told.items() if told.get("state") in ("measured", "small")}
        peaks, change = update_peaks(self._peaks, entries, told_of, found)
        if not (peaks.entries or self._peaks.entries):
            return f"gpu-leak: the file of peaks {self._file} was not updated: no test has a peak of {format_bytes(LEAST)} or more"
        rank = rank_of(os.environ)
        if rank is not None and rank.number > 0:
            self._lines.append(f"gpu-leak: {rank.name} does not write the file of peaks, rank 0 does")
            return ""
        try:
            write_text(dump_peaks(peaks), path)
        except OSError as error:
            return f"gpu-leak: the file of peaks {self._file} could not be written: {error.strerror or error}"
        self._lines.append(
            f"gpu-leak: peaks {self._file}: {change.added} added, {change.removed} removed, {change.changed} changed, "
            f"{change.kept} kept"
            + (f"; written anew, for {self._peaks.why_not_compared('gpu', found)}" if anew else "")
        )
        return ""

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show the heaviest tests, and how the peaks compare with the file."""
        if self._is_worker or runs_nothing(self._config):
            return
        lines = self._render_heaviest()
        if lines:
            terminalreporter.section("PEAKS")
        for line in [*lines, *self._render_compared(), *self._lines]:
            terminalreporter.line(line, **MARKUP.get(type(line), {}))
        if self._error:
            terminalreporter.line(self._error, red=True)

    def _render_heaviest(self) -> list[str]:
        if not self._number:
            return []
        from pytest_gpuleak.model.finding_codec import decode
        from pytest_gpuleak.model.peak_parts import Peak
        from pytest_gpuleak.reports.terminal.peak import render_heaviest

        peaks: list[tuple[str, Peak]] = [
            (nodeid, decode(Peak, told["peak"])) for nodeid, told in self._told.items() if told.get("peak")
        ]
        return [*render_heaviest(peaks, self._number), *self._render_unmeasured()]

    def _render_unmeasured(self) -> list[str]:
        """Write why tests have no peak, or were not compared: one line for all, by reason."""
        reasons = Counter(str(told["why"]) for told in self._told.values() if told.get("why"))
        what = "compared" if self._path is not None and not self._updating else "measured"
        return [
            f"gpu-leak: the {'peak of 1 test was' if times == 1 else f'peaks of {times} tests were'} not {what}: {why}"
            for why, times in reasons.most_common(_LISTED)
        ]

    def _render_compared(self) -> list[str]:
        if self._path is None or self._updating:
            return [] if self._number else self._render_unmeasured()
        states = Counter(str(told["state"]) for told in self._told.values() if "state" in told)
        counts = ", ".join(f"{states[name]} {name}" for name in ("grown", "shrunk", "kept"))
        lines = [f"gpu-leak: peaks held to {self._file}: {counts} (tolerance {self._peaks.tolerance * 100:g} %)"]
        shrunk = [(nodeid, told) for nodeid, told in sorted(self._told.items()) if told.get("state") == "shrunk"]
        lines += first_lines(shrunk, _LISTED, lambda one: _shrunk_line(*one), "  and {} more")
        if shrunk:
            lines.append("  keep what was won: run with --gpu-leak-update-peaks")
        return lines if self._number else [*lines, *self._render_unmeasured()]


def _shrunk_line(nodeid: str, told: dict[str, Any]) -> str:
    return f"  - {clean_text(nodeid, 300)}: {format_bytes(told['was'])} -> {format_bytes(told['bytes'])}"

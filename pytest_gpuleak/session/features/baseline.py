"""A session under a baseline. xdist's controller alone reads and writes the file, and judges the rest at the end."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_gpuleak.baseline.file import Baseline, dump_baseline, load_baseline
from pytest_gpuleak.baseline.matching import MAX_TEXT, Judge, entry_place, function_of, is_recorded
from pytest_gpuleak.baseline.toml_file import UnusableBaseline
from pytest_gpuleak.baseline.update import Seen, apply_baseline, update_baseline
from pytest_gpuleak.model.findings import BaselineChange, BaselineStatus, KnownLeak
from pytest_gpuleak.model.text import clean_text, count_of
from pytest_gpuleak.reports.atomic_write import write_text
from pytest_gpuleak.reports.terminal.baseline import render_change, render_stale
from pytest_gpuleak.session.config.given_values import place_of_option
from pytest_gpuleak.session.fixtures import is_wider
from pytest_gpuleak.session.fixtures import place_of as place_of_fixture
from pytest_gpuleak.session.surroundings import rank_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.policy import Settings
    from pytest_gpuleak.model.records import RunReport

BASELINE_KEY = "gpu_leak_baseline"
"""Key of the entries in xdist's ``workerinput``."""
SEEN_KEY = "gpu_leak_seen"
"""Key of what a worker saw of the collection, in xdist's ``workeroutput``."""

SHOWN_PATH = 300
"""Characters of a path that are shown."""

_T = TypeVar("_T")


def open_baseline(config: pytest.Config, settings: Settings) -> BaselineRun | None:
    """Read the run's baseline, if any, and register what follows the run. Raises pytest.UsageError if unusable."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if settings.baseline is None:
        for name, asked in (("update-baseline", settings.update_baseline), ("fail-stale", settings.fail_stale)):
            if asked and worker is None:
                raise pytest.UsageError(
                    f"--gpu-leak-{name}: there is no baseline; name its file with --gpu-leak-baseline=PATH"
                )
        return None
    if worker is not None and BASELINE_KEY in worker:
        sent = worker[BASELINE_KEY]
        baseline = Baseline(tuple(KnownLeak(**entry) for entry in sent["entries"]), sent["tolerance"])
    else:
        found = read_file(config, "baseline", settings.baseline, load_baseline, updating=settings.update_baseline)
        baseline = found or Baseline(())
    run = BaselineRun(config, settings, baseline, settings.baseline)
    config.pluginmanager.register(run, "gpuleak-baseline")
    return run


def read_file(
    config: pytest.Config, option: str, path: Path, load: Callable[[Path], _T], *, updating: bool
) -> _T | None:
    """Read a baseline, or None for one that is to be written (`updating`).

    Raises pytest.UsageError for a file that cannot be used, or not be written: a long run would be in vain.
    """
    shown = clean_text(str(path), SHOWN_PATH)
    try:
        if not updating or os.access(path.parent, os.W_OK | os.X_OK):
            return load(path)
        why = f"{shown} cannot be written: its folder is missing or may not be written to"
    except FileNotFoundError:
        if updating:
            return None
        why = f"{shown} does not exist; {_WRITES[option]} writes a first one"
    except UnusableBaseline as error:
        why = str(error)
    except (OSError, ValueError) as error:  # a folder, no permission, a name with a NUL
        why = f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}; accepted is a TOML file"
    raise pytest.UsageError(f"{place_of_option(config, option)}: {why}")


_WRITES = {"baseline": "--gpu-leak-update-baseline", "peaks_baseline": "--gpu-leak-update-peaks"}

FOR_NOW = BaselineStatus("known", "an entry lists the test; whether it lists the holder is told at the end of the run")
"""Stands with a finding until its holder is known."""


class BaselineRun:
    """Judge a session's tests and fixtures by a baseline."""

    def __init__(self, config: pytest.Config, settings: Settings, baseline: Baseline, path: Path) -> None:
        self.baseline = baseline
        self.path = path
        self.change: BaselineChange | None = None
        """What an update changed; None without an update."""
        self.failed = False
        """Whether stale entries fail the run, or leaks that are not those that are listed."""
        self._fails_stale = False
        self.notes: list[str] = []
        """Lines for the end of the run."""
        self._config = config
        self._settings = settings
        self._judge = Judge(baseline)
        self._watch = _Watch(config, baseline)
        config.pluginmanager.register(self._watch, "gpuleak-baseline-watch")
        self._of_workers: list[Seen] = []

    def settle(self, findings: tuple[Finding, ...], nodeid: str) -> tuple[Finding, ...]:
        """Return the findings of one test with `known` set. While the baseline is updated, all are known.

        So is, until the end of the run, what an entry lists by test, kind and device and whose holder is not known yet.
        """
        test = clean_text(function_of(nodeid), MAX_TEXT)
        settled = self._settle(findings, test, None)
        return tuple(
            dataclasses.replace(found, failed=False, known=True, baseline=FOR_NOW)
            if found.failed and found.waits and self._judge.may_list(found, test)
            else found
            for found in settled
        )

    def lists(self, nodeid: str) -> bool:
        """Tell whether a test's holders may be searched for later: a leak of it is listed, or all are accepted."""
        return self._settings.update_baseline or self._judge.lists(clean_text(function_of(nodeid), MAX_TEXT))

    def note_late(self, nodeids: Iterable[str]) -> None:
        """Fail the run for tests that passed as known, and whose holders are not those that are listed."""
        found = sorted(nodeids)
        self.failed |= bool(found)
        self.notes += [
            f"gpu-leak: {nodeid} passed as known, but its holder is not the one that is listed" for nodeid in found
        ]

    def settle_fixtures(self, records: Iterable[FixtureRecord]) -> list[FixtureRecord]:
        """Do the same for the fixtures of this process."""
        return [
            record
            if record.allowed is not None
            else dataclasses.replace(record, findings=self._settle(record.findings, *entry_place(record)))
            for record in records
        ]

    def _settle(self, findings: tuple[Finding, ...], test: str, fixture: str | None) -> tuple[Finding, ...]:
        if self._settings.update_baseline:
            return tuple(_accepted(found) for found in findings)
        return self._judge.settle(findings, test, fixture)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send the entries to a worker, before it starts."""
        node.workerinput[BASELINE_KEY] = {
            "entries": [dict(vars(entry)) for entry in self.baseline.entries],
            "tolerance": self.baseline.tolerance,
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker saw. A worker that died sends nothing."""
        sent = (getattr(node, "workeroutput", None) or {}).get(SEEN_KEY)
        if sent is not None:
            gone, partial, fixtures = sent
            self._of_workers.append(Seen(frozenset(gone), frozenset(partial), frozenset(map(tuple, fixtures))))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """In a worker, send what was seen."""
        if hasattr(self._config, "workerinput"):
            self._config.workeroutput[SEEN_KEY] = [sorted(part) for part in self._watch.seen()]  # type: ignore[attr-defined]

    def finish(self, report: RunReport, session: pytest.Session) -> tuple[RunReport, str | None]:
        """Update the baseline if requested; return the run judged by it, and a fault as one line, or None."""
        seen = self._seen(report)
        error = (
            (self._why_not(report, session) or self._update(report, seen)) if self._settings.update_baseline else None
        )
        judged = apply_baseline(report, self.baseline, seen)
        self._fails_stale = self._settings.fail_stale and bool(judged.stale)
        self.failed |= self._fails_stale
        missing = self._watch.why_nothing_is_gone()
        if missing:
            self.notes.append(missing)
        return judged, error

    def _seen(self, report: RunReport) -> Seen:
        seen = self._watch.seen()
        if self._of_workers:
            seen = Seen(
                frozenset.intersection(*(one.gone for one in self._of_workers)),
                frozenset.union(*(one.partial for one in self._of_workers)),
                frozenset.union(*(one.fixtures for one in self._of_workers)),
            )
        if any(record.outcome in ("failed", "error") for record in report.tests):
            # After a failed test a fixture without findings proves nothing: tracebacks are not blamed on fixtures.
            seen = seen._replace(fixtures=frozenset())
        return seen

    def _why_not(self, report: RunReport, session: pytest.Session) -> str | None:
        status = session.exitstatus
        if report.incomplete is not None or status == pytest.ExitCode.INTERRUPTED:
            why = f"the run is incomplete: {report.incomplete or 'it was interrupted'}"
        elif session.shouldfail or session.shouldstop:
            why = f"the run is incomplete: {session.shouldfail or session.shouldstop}"
        elif status == pytest.ExitCode.NO_TESTS_COLLECTED:
            why = "no test ran"
        elif status != pytest.ExitCode.OK:
            why = "tests failed for other reasons than leaks"
        elif any(getattr(self._config.option, name, False) for name in ("setuponly", "setupplan")):
            why = "no test was called"
        else:
            return None
        return f"gpu-leak: the baseline {self._shown} was not updated: {clean_text(why, 2 * SHOWN_PATH)}"

    def _update(self, report: RunReport, seen: Seen) -> str | None:
        new, change = update_baseline(self.baseline, report, seen)
        rank = rank_of(os.environ)
        if rank is not None and rank.number > 0:
            self.baseline = new
            self.notes.append(f"gpu-leak: {rank.name} does not write the baseline, rank 0 does")
            return None
        if change.added or change.removed or change.changed or not self.path.exists():
            try:
                write_text(dump_baseline(new), self.path)
            except OSError as error:
                return f"gpu-leak: the baseline {self._shown} could not be written: {error.strerror or error}"
        self.baseline, self.change = new, change
        self._note_unseen(report, seen, change)
        return None

    def _note_unseen(self, report: RunReport, seen: Seen, change: BaselineChange) -> None:
        ran = {entry_place(record)[0] for record in report.tests if record.verdict != "unchecked"}
        unseen = sum(
            entry.test not in ran if entry.fixture is None else (entry.test, entry.fixture) not in seen.fixtures
            for entry in change.kept
        )
        deselected = report.summary.get("deselected", 0)
        if unseen or deselected:
            part = f" ({count_of(deselected, 'test')} deselected)" if deselected else ""
            entries = "1 entry was" if unseen == 1 else f"{unseen} entries were"
            self.notes.append(
                f"gpu-leak: not all was seen{part}: the baseline gained only what was; {entries} kept unseen"
            )

    def render(self, report: RunReport, *, verbosity: int) -> list[str]:
        """Write the lines for the end of the run: what an update changed, what is stale, and notes."""
        lines = render_change(self.change, self._shown) if self.change is not None else []
        if verbosity >= 0 or self._fails_stale:
            lines += render_stale(report.stale, self._shown, fails=self._fails_stale)
        return lines + self.notes

    @property
    def _shown(self) -> str:
        return clean_text(str(self.path), SHOWN_PATH)


class _Watch:
    """Follow a collection: which tests of the baseline exist, and which of their parameters run."""

    def __init__(self, config: pytest.Config, baseline: Baseline) -> None:
        self._config = config
        self._tests = {entry.test for entry in baseline.entries if entry.fixture is None}
        self._files = {test.partition("::")[0] for test in self._tests}
        self._fixtures = {entry.fixture for entry in baseline.entries if entry.fixture is not None}
        self._collected: Counter[str] = Counter()
        self._selected: Counter[str] = Counter()
        self._files_seen: set[str] = set()
        self._fixtures_seen: set[tuple[str, str]] = set()
        self._began = False

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        function = clean_text(function_of(item.nodeid), MAX_TEXT)
        file = function.partition("::")[0]
        if file in self._files:
            self._files_seen.add(file)
            self._collected[function] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._began = True
        for item in session.items:
            self._selected[clean_text(function_of(item.nodeid), MAX_TEXT)] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> None:
        if self._fixtures and is_wider(fixturedef):
            place = place_of_fixture(fixturedef, request, str)
            self._fixtures_seen.add((clean_text(place.baseid, MAX_TEXT), clean_text(place.name, MAX_TEXT)))

    def seen(self) -> Seen:
        arguments = [str(argument) for argument in self._config.args]
        if not self._began or self._config.getoption("lf", False):
            # --lf drops tests during collection without a hook call.
            return Seen(partial=frozenset(self._tests), fixtures=frozenset(self._fixtures_seen))
        by_parameter = {function_of(text).rpartition("::")[2] for text in arguments if "::" in text and "[" in text}
        partial = {
            test
            for test in self._tests
            if self._selected[test] < self._collected[test] or test.rpartition("::")[2] in by_parameter
        }
        folders = [self._config.invocation_params.dir / text for text in arguments if "::" not in text]
        elsewhere = self.why_nothing_is_gone() is not None
        whole = {file for file in self._files if self._is_whole(file, folders, elsewhere=elsewhere)}
        gone = {test for test in self._tests if test.partition("::")[0] in whole and not self._collected[test]}
        return Seen(frozenset(gone), frozenset(partial), frozenset(self._fixtures_seen))

    def why_nothing_is_gone(self) -> str | None:
        if not self._files or any(self._path_of(file).exists() for file in self._files):
            return None
        return (
            f"gpu-leak: none of the baseline's test files is below the rootdir {self._config.rootpath}: "
            "was it written for another one?"
        )

    def _is_whole(self, file: str, arguments: Iterable[Path], *, elsewhere: bool) -> bool:
        path = self._path_of(file)
        read = file in self._files_seen
        if not read and (elsewhere or path.exists()):
            return False
        return any(_is_below(path, argument) for argument in arguments)

    def _path_of(self, file: str) -> Path:
        return Path(self._config.rootpath) / file


def _is_below(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL
        return False


def _accepted(finding: Finding) -> Finding:
    # The end of the run decides whether it is recorded.
    return dataclasses.replace(finding, failed=False, known=True) if is_recorded(finding) else finding

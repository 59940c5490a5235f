"""Counts and memory of a run, from its records, and what is told beside them of its processes and of the suite's own clean-up."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final, Literal

from pytest_gpuleak.model.readings import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.model.findings import FixtureRecord
    from pytest_gpuleak.model.first_init import FirstInit
    from pytest_gpuleak.model.helpers import HelperMemory
    from pytest_gpuleak.model.records import TestRecord


SUSPECT_PARTS = ("check", "reruns", "search")

MAX_NAMES = 20
"""Leaking fixtures whose names stand in a summary; the records have all."""

VERDICTS = ("clean", "leaked", "noted", "allowed", "unchecked")


class Totals:
    """Counts of a summary, updated test by test."""

    def __init__(self) -> None:
        self._verdicts = dict.fromkeys(VERDICTS, 0)
        self._rerun = 0
        self._findings = 0
        self._fixtures = (0, 0)
        self._overhead_s = self._duration_s = 0.0

    def copy(self) -> Totals:
        """Return an independent copy."""
        other = Totals()
        vars(other).update(vars(self), _verdicts=dict(self._verdicts))
        return other

    def add(self, verdict: str, findings: int, overhead_s: float, duration_s: float, *, rerun: bool = False) -> None:
        """Count a test, or an attempt that was run again (`rerun`). Raises KeyError for an unknown verdict."""
        self._verdicts[verdict] += not rerun
        self._rerun += rerun
        self._findings += findings
        self._overhead_s += overhead_s
        self._duration_s += duration_s

    def set_fixtures(self, leaked: int, findings: int) -> None:
        """Set the number of leaking fixtures, and that of all fixtures' findings."""
        self._fixtures = (leaked, findings)

    def summary(self) -> dict[str, Any]:
        """Return the keys of a report's ``summary`` that need no list of all tests."""
        return {
            "tests": sum(self._verdicts.values()),
            **self._verdicts,
            "rerun": self._rerun,
            "fixtures_leaked": self._fixtures[0],
            "findings": self._findings + self._fixtures[1],
            "overhead_s": self._overhead_s,
            "duration_s": self._duration_s,
        }


def summarise(tests: Iterable[TestRecord], fixtures: Sequence[FixtureRecord]) -> dict[str, Any]:
    """Return the keys of a `summary` that records alone determine."""
    totals = Totals()
    totals.set_fixtures(
        sum(any(found.failed for found in record.findings) for record in fixtures),
        sum(len(record.findings) for record in fixtures),
    )
    clean: list[float] = []
    suspects: list[dict[str, float]] = []
    faulty = 0
    for record in tests:
        totals.add(record.verdict, len(record.findings), record.overhead_s, record.duration_s, rerun=record.rerun)
        faulty += bool(record.faults)
        if record.suspect_s:
            suspects.append(record.suspect_s)
        elif not record.findings:
            clean.append(record.overhead_s)
    ordered = sorted(clean)
    names = (record.name for record in fixtures if any(found.failed for found in record.findings))
    return {
        **totals.summary(),
        "leaking_fixtures": list(dict.fromkeys(names))[:MAX_NAMES],
        "faults": faulty,
        # A median: the first test pays for what is loaded once, and some pay for a wider fixture's check.
        "overhead_per_test_us": ordered[len(ordered) // 2] * 1e6 if ordered else None,
        "suspects": {"tests": len(suspects), **{f"{part}_s": _sum(suspects, part) for part in SUSPECT_PARTS}},
    }


def find_dearest(tests: Iterable[TestRecord], count: int) -> list[dict[str, Any]]:
    """Return the suspects whose check took longest: nodeid, and the seconds of ``TestRecord.suspect_s``."""
    suspects = [test for test in tests if test.suspect_s]
    suspects.sort(key=lambda test: (-_sum([test.suspect_s], "check"), test.nodeid))
    return [
        {"nodeid": test.nodeid, **{f"{part}_s": _sum([test.suspect_s], part) for part in SUSPECT_PARTS}}
        for test in suspects[:count]
    ]


def count_known(tests: Iterable[TestRecord], fixtures: Iterable[FixtureRecord]) -> int:
    """Return the number of findings that a baseline lists."""
    return sum(found.known for records in (tests, fixtures) for record in records for found in record.findings)


def _sum(suspects: Sequence[Mapping[str, float]], part: str) -> float:
    return sum(seconds for one in suspects if math.isfinite(seconds := one.get(part, 0.0)))


class ProcessFacts:
    """What a summary has of processes and no record tells: of one, of a run's workers, or of merged reports.

    Attributes:
        run_s: the seconds of the runs, added up; None: nobody told.
        lost_devices: the devices that stopped answering, as fields of `LostDevice`.
        first_init: who initialised a device first; of several processes, one (`earlier_of`). None: nobody did.
        helpers: what helper processes of fixtures have had over the tests.
    """

    def __init__(self, run_s: float | None = None) -> None:
        self.run_s = run_s
        self.lost_devices: list[dict[str, Any]] = []
        self.first_init: FirstInit | None = None
        self.helpers: list[HelperMemory] = []
        self._clean_up: list[CleanUp] = []

    def add_run(self, run_s: float, calls: Iterable[CleanUp]) -> None:
        """Add the seconds of a process's run, and its clean-up calls."""
        self.run_s = (self.run_s or 0.0) + run_s
        self._clean_up += calls

    def note_first_init(self, found: FirstInit) -> None:
        """Note who initialised a device first in a process."""
        from pytest_gpuleak.model.first_init import earlier_of

        self.first_init = earlier_of(self.first_init, found)

    def add(self, fields: Mapping[str, Any]) -> None:
        """Add what `encode` has returned, or a summary has. Raises KeyError or TypeError for other data."""
        if "run_s" in fields:
            self.run_s = (self.run_s or 0.0) + fields["run_s"]
        if fields.get("cleanup"):
            self._clean_up = sum_by_caller([*self._clean_up, *(CleanUp(**one) for one in fields["cleanup"])])
        self.lost_devices += fields.get("lost_devices") or ()
        if "first_init" in fields:
            from pytest_gpuleak.model.first_init import decode_first_init

            self.note_first_init(decode_first_init(fields["first_init"]))
        if fields.get("helpers"):
            from pytest_gpuleak.model.finding_codec import decode
            from pytest_gpuleak.model.helpers import HelperMemory

            self.helpers += [decode(HelperMemory, one) for one in fields["helpers"]]

    def encode(self, *, whole: bool = False) -> dict[str, Any]:
        """Encode the facts for a summary, without those that nobody told; `whole`: with each caller of clean-up."""
        fields: dict[str, Any] = {} if self.run_s is None else {"run_s": self.run_s}
        if self._clean_up:
            calls = self._clean_up if whole else add_up(self._clean_up)
            fields["cleanup"] = [dict(vars(one)) for one in calls]
        if self.lost_devices:
            fields["lost_devices"] = self.lost_devices
        if self.first_init is not None or self.helpers:
            from pytest_gpuleak.model.finding_codec import encode

            told = {"first_init": self.first_init, "helpers": tuple(self.helpers)}
            fields.update({name: encode(found) for name, found in told.items() if found})
        return fields


def describe_usage(tests: Sequence[TestRecord], count: int) -> dict[str, Any]:
    """Return the run's memory as plain values: ``drift``, ``peaks``, ``heaviest``. Empty where no counter was read."""
    drift = _sum_drift(tests)
    if not drift:
        return {}
    return {"drift": drift, "peaks": _highest_peaks(tests), "heaviest": _find_heaviest(tests, count)}


def _sum_drift(tests: Iterable[TestRecord]) -> dict[str, dict[str, int]]:
    first: dict[tuple[str, str, str], int] = {}
    last: dict[tuple[str, str, str], int] = {}
    for test in tests:
        for device, counters in test.memory.items():
            for name, size in counters.items():
                metric, _, when = name.rpartition("_")
                if when == "before":
                    first.setdefault((test.worker, device, metric), size)
                elif when == "after":
                    last[test.worker, device, metric] = size
    drift: dict[str, dict[str, int]] = {}
    for (worker, device, metric), size in last.items():
        counters = drift.setdefault(device, {})
        counters[metric] = counters.get(metric, 0) + size - first.get((worker, device, metric), 0)
    return drift


def _highest_peaks(tests: Iterable[TestRecord]) -> dict[str, int]:
    peaks: dict[str, int] = {}
    for test in tests:
        for device, counters in test.memory.items():
            if "peak" in counters:
                peaks[device] = max(peaks.get(device, 0), counters["peak"])
    return peaks


def _find_heaviest(tests: Iterable[TestRecord], count: int) -> list[dict[str, Any]]:
    """Weigh a test by a device's peak above its start. Where no test used a device, the host counts by its growth."""
    weighed = [entry for test in tests if (entry := _weight(test)) is not None]
    on_devices = [entry for entry in weighed if entry["device"] != HOST]
    return sorted(on_devices or weighed, key=lambda entry: (-entry["bytes"], entry["nodeid"]))[:count]


def _weight(test: TestRecord) -> dict[str, Any] | None:
    best: tuple[bool, int, str, str] | None = None
    for device, counters in test.memory.items():
        added = _added(device, counters)
        if added is not None and added[0] > 0:
            best = max(best or (False, 0, "", ""), (device != HOST, added[0], device, added[1]))
    return None if best is None else {"nodeid": test.nodeid, "device": best[2], "bytes": best[1], "what": best[3]}


def _added(device: str, counters: Mapping[str, int]) -> tuple[int, str] | None:
    if device != HOST:
        if "peak" in counters:
            return counters["peak"] - counters.get("allocated_before", 0), "peak"
        return counters.get("allocated_after", 0) - counters.get("allocated_before", 0), "left"
    for name, size in counters.items():
        if name.endswith("_after"):
            return size - counters.get(name.removesuffix("_after") + "_before", 0), "left"
    return None


TOLD_SHARE: Final = 0.05
"""Part of a run from which its clean-up is told in the terminal. No verdict depends on it."""

MAX_LISTED: Final = 20
"""Callers that a report lists, those that took longest; the others are one entry for each kind of call."""

OTHERS: Final = "others"


@dataclasses.dataclass(frozen=True)
class CleanUp:
    """The calls of one kind by one caller, of all workers.

    Attributes:
        what: ``gc.collect``: collections of the whole heap; ``empty_cache``: of a device's allocator.
        by: ``fixture 'cleanup'``, or the function that made the call (``TestModel.tearDown()``).
        file: where the fixture or function is defined, relative to the rootdir where it lies below it.
        line: the line that its definition begins in.
        count: the number of calls.
        seconds: how long the calls took.
    """

    what: Literal["gc.collect", "empty_cache"]
    by: str
    file: str | None
    line: int | None
    count: int
    seconds: float


def add_up(entries: Iterable[CleanUp]) -> list[CleanUp]:
    """Add up the calls of equal kind and caller; return those that took longest first, `MAX_LISTED` and the others."""
    whole = sum_by_caller(entries)
    rest = (dataclasses.replace(one, by=OTHERS, file=None, line=None) for one in whole[MAX_LISTED:])
    return whole[:MAX_LISTED] + sum_by_caller(rest)


def total_s(entries: Iterable[CleanUp]) -> float:
    """Return the seconds that all calls took."""
    return sum(one.seconds for one in entries)


def is_worth_telling(entries: Sequence[CleanUp], run_s: float) -> bool:
    """Tell whether the calls took more than `TOLD_SHARE` of a run of `run_s` seconds."""
    return total_s(entries) > TOLD_SHARE * run_s


def sum_by_caller(entries: Iterable[CleanUp]) -> list[CleanUp]:
    """Add up the calls of equal kind and caller; return those that took longest first."""
    sums: dict[tuple[str, str, str, int], CleanUp] = {}
    for one in entries:
        key = (one.what, one.by, one.file or "", one.line or 0)
        before = sums.get(key)
        if before is not None:
            count, seconds = before.count + one.count, before.seconds + one.seconds
            sums[key] = dataclasses.replace(one, count=count, seconds=seconds)
        else:
            sums[key] = one
    return [one for _, one in sorted(sums.items(), key=lambda item: (-item[1].seconds, item[0]))]

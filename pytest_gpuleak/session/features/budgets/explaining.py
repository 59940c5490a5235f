"""Tell what filled the memory of a test over its budget: by a re-run, and what fixtures had before. Loaded for an excess."""

from __future__ import annotations

import contextlib
import dataclasses
from gc import get_referents
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuleak.adapters.arrays import array_types, select_arrays
from pytest_gpuleak.adapters.bulk import read_arrays
from pytest_gpuleak.heap.referrers import reaches_everything, untouchable_modules
from pytest_gpuleak.heap.safe_access import in_package
from pytest_gpuleak.model.findings import Contribution
from pytest_gpuleak.model.peak_parts import located, with_total
from pytest_gpuleak.model.source_files import is_user_file
from pytest_gpuleak.model.text import clean_text, format_bytes
from pytest_gpuleak.reports.terminal.peak import render_peak
from pytest_gpuleak.session.features.budgets.measured_run import MeasuredRun
from pytest_gpuleak.session.fixtures import is_wider
from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.pytest_internals import fixtures_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.detect.peak_meter import PeakMeter
    from pytest_gpuleak.model.peak_parts import Peak
    from pytest_gpuleak.model.peaks import DevicePeak
    from pytest_gpuleak.session.attempt import AttemptLog
    from pytest_gpuleak.session.features.budgets.budget import Excess
    from pytest_gpuleak.session.features.budgets.measured_run import EndedTest

SECTION = "what filled the memory at its peak, recorded in a re-run after teardown"
"""Name of the report's section. pytest shows sections of a passed teardown with "teardown" in their names alone."""

PURPOSE = "to tell what filled the memory at its peak"

MOST_OBJECTS: Final = 50_000
"""Objects behind a fixture that are looked at."""

_LEADS_AWAY: Final = (FunctionType, MethodType, BuiltinFunctionType, FrameType)
"""Types of objects that lead to a module's globals, or to what runs."""

_SAME = 1
"""Percent of the peak by which two runs of a test may differ before both peaks are told."""


class Explained(NamedTuple):
    """What filled the memory, and the section's text; no peak where that could not be told.

    `counted` is what counts against the budget without workspaces, in bytes; None where that is not known.
    """

    peak: Peak | None
    text: str
    counted: int | None = None


def explain_excess(test: EndedTest, excess: Excess, meter: PeakMeter, attempts: AttemptLog) -> Explained | None:
    """Run a test over its budget once more under a recorder.

    None where no recorder knows the device, or what was counted is not what arrays take: nothing is run then.
    """
    root = str(test.item.config.rootpath)
    if excess.budget.metric != "allocated":
        return None
    recorder = shared_frameworks(test.item.config).peak_recorder(lambda file: is_user_file(file, root), excess.device)
    if recorder is None:
        return None
    rerun = MeasuredRun(test, attempts, PURPOSE)
    if rerun.why_not:
        return Explained(None, f"not recorded: {rerun.why_not}")
    meter.end()
    rerun.release()
    peaks: dict[str, DevicePeak] = {}

    @contextlib.contextmanager
    def recorded() -> Iterator[None]:
        with recorder:
            yield
            peaks.update(meter.peaks())  # before the teardown, as in the first run

    why = rerun.run(meter, recorder, recorded())
    if why:
        return Explained(None, f"not recorded: {why}")
    peak = located(recorder.peak(excess.device), root)
    counted = peaks.get(excess.device)
    if counted is not None and counted.allocated.exact:
        least, most = counted.allocated.own, counted.allocated.own + counted.allocated.workspaces
        if peak.workspaces_bytes is None or not least <= peak.bytes <= most:
            peak = with_total(dataclasses.replace(peak, workspaces_bytes=None), least)
        peak = _compared(peak, excess)
    if excess.percent:
        peak = _compared(peak, excess)
        lacks, explained = peak.lacks, sum(part.bytes for part in peak.parts)
        peak = with_total(peak, max(explained, excess.peak))
        peak = dataclasses.replace(peak, lacks=lacks, estimated=True)  # the moment is not in doubt: no device counted
    before = excess.before if excess.budget.total else 0
    text = "\n".join(render_peak(peak, excess.budget.bytes - before))
    return Explained(peak, text, None if peak.workspaces_bytes is None else peak.bytes + before)


def _compared(peak: Peak, excess: Excess) -> Peak:
    """Return the peak of the re-run, which says so where the first run's was another."""
    first = excess.peak - (excess.before if excess.budget.total else 0)
    most = first + excess.workspaces if peak.workspaces_bytes is not None else first
    if max(first - peak.bytes, peak.bytes - most) * 100 <= first * (excess.percent or _SAME):
        return peak
    peaked = "is estimated" if excess.percent else "peaked"
    lack = f"the first run {peaked} at {format_bytes(first)}, its re-run, of which the parts are, at {format_bytes(peak.bytes)}"
    return dataclasses.replace(peak, lacks=(*peak.lacks, clean_text(lack, 200)))


def held_by_fixtures(item: pytest.Item, device: str, frameworks: Sequence[ArrayFramework]) -> tuple[Contribution, ...]:
    """Return what the wider fixtures that a test uses have on a device, most first; each storage is the first one's."""
    counted: set[int] = set()
    found: list[Contribution] = []
    for fixture in {id(one): one for one in fixtures_of(item)}.values():
        result = getattr(fixture, "cached_result", None)
        if result is None or result[-1] is not None or not is_wider(fixture):
            continue
        readings = read_arrays(_arrays_behind(result[0], frameworks), frameworks).values()
        sizes = {
            one.storage: one.storage_bytes for one in readings if one.device == device and one.storage not in counted
        }
        counted.update(sizes)
        if sizes:
            name = clean_text(str(fixture.argname), 80)
            found.append(Contribution(f"fixture {name}", sum(sizes.values()), len(sizes)))
    return tuple(sorted(found, key=lambda part: -part.bytes))


def _arrays_behind(value: object, frameworks: Sequence[ArrayFramework]) -> list[object]:
    """Return the arrays that an object leads to, without code, modules, and objects of pytest's."""
    arrays: list[object] = []
    bases = array_types(frameworks)
    never = untouchable_modules()
    met = {id(value)}
    level: list[object] = [value]
    while level and len(met) < MOST_OBJECTS:
        arrays += select_arrays(level, bases)
        level = [one for one in level if id(one) not in never and not _leads_away(one)]
        following = {id(one): one for one in get_referents(*level) if id(one) not in met}
        met.update(following)
        level = list(following.values())
    return arrays


def _leads_away(value: object) -> bool:
    kind = type(value)
    return kind in _LEADS_AWAY or reaches_everything(value) or in_package(kind, "_pytest")

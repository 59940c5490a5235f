"""The memory of a run, computed from its records: the heaviest tests, and what the session added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.readings import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.model.records import TestRecord


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

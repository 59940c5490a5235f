"""Hold a test's peak to the file of peaks, or measure it for the file: in the process that runs the test."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.baseline.peaks import LEAST, Made
from pytest_gpuleak.model.peak_changes import KnownPeak, PeakChange, known_peak
from pytest_gpuleak.model.text import clean_text, format_bytes
from pytest_gpuleak.reports.terminal.peak import render_grown, render_peak
from pytest_gpuleak.session.features.budgets.budget import peak_finding
from pytest_gpuleak.session.frameworks import shared_frameworks

if TYPE_CHECKING:
    import pytest

    from pytest_gpuleak.baseline.peaks import Peaks
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.peak_parts import Peak
    from pytest_gpuleak.model.peaks import Taken


class Ratchet:
    """Compares the tests of one process with the file's peaks, of which there may be none; while it is updated, measures all."""

    def __init__(self, config: pytest.Config, peaks: Peaks, file: str, *, updating: bool, warn: bool) -> None:
        self._config = config
        self._peaks = peaks
        self._file = file
        self._updating = updating
        self._warn = warn
        self._by_test: dict[str, dict[str, KnownPeak]] = {}
        for entry in peaks.entries:
            self._by_test.setdefault(entry.test, {})[entry.device] = entry

    def needs_parts(self, nodeid: str, taken: Taken) -> bool:
        """Tell whether a test is to be run again: its peak is not known yet, or its rows are needed."""
        if self._updating:
            return taken.bytes is None or taken.bytes >= LEAST
        entry = self._entry(nodeid, taken.device)
        if not isinstance(entry, KnownPeak):
            return False
        return taken.bytes is None or taken.bytes > self._peaks.limit(entry)

    def compare(self, nodeid: str, taken: Taken, peak: Peak | None) -> dict[str, Any]:
        """Return how a test's peak compares, as plain data that xdist can send; empty where the file does not list it."""
        if self._updating:
            return self._measured(nodeid, taken, peak)
        entry = self._entry(nodeid, taken.device)
        if not isinstance(entry, KnownPeak):
            return {"why": entry} if entry else {}
        if taken.bytes is None:
            return {}
        now = _now(nodeid, taken, peak)
        told: dict[str, Any] = {"state": "kept", "was": entry.bytes, "bytes": now.bytes, "device": taken.device}
        if now.bytes > self._peaks.limit(entry):
            lines = render_grown(PeakChange(entry, now), self._file, self._peaks.tolerance)
            lines += [] if peak is None else render_peak(peak, self._peaks.limit(entry))
            told.update(state="grown", text="\n".join(lines), fails=not self._warn)
        elif entry.bytes - now.bytes > entry.bytes * self._peaks.tolerance:
            told["state"] = "shrunk"
        return told

    def compare_unexplained(self, nodeid: str, taken: Taken, why: str) -> dict[str, Any]:
        """Return the same for a test whose re-run gave no peak: what a device's counters have told stands."""
        told = {} if self._updating or taken.bytes is None else self.compare(nodeid, taken, None)
        if told.get("state") == "grown":
            told["text"] += f"\n  not told: {why}"
        return told

    def finding_of(self, taken: Taken, peak: Peak | None, told: dict[str, Any]) -> Finding | None:
        """Make the report's finding of a peak that has grown; None for any other."""
        if told.get("state") != "grown":
            return None
        lines = str(told["text"]).splitlines()
        return peak_finding(
            f"peak {taken.device.partition(':')[0]}",
            taken.device,
            int(told["bytes"]),
            failed=bool(told["fails"]),
            metric="allocated",
            evidence=(
                f"peak: {format_bytes(int(told['bytes']))} over what was before",
                f"in {self._file}: {format_bytes(int(told['was']))}, tolerance {self._peaks.tolerance * 100:g} %",
                *(clean_text(line.strip(), 300) for line in lines[2:] if line.lstrip().startswith("+")),
            ),
            peak=peak,
        )

    def _measured(self, nodeid: str, taken: Taken, peak: Peak | None) -> dict[str, Any]:
        if peak is None or taken.bytes is None:
            return {"state": "small"}
        entry = _now(nodeid, taken, peak)
        made = self.made()
        rows = [list(vars(row).values()) for row in entry.parts]
        return {"state": "measured", "entry": {**vars(entry), "parts": rows}, "made": list(made)}

    def made(self) -> Made:
        """Return what this process measures with: torch, and the models of the GPUs in use."""
        members = shared_frameworks(self._config).members
        torch = next((member.version() for member in members if member.name == "torch"), None)
        names = [name.partition(" ")[2] or name for member in members for name in member.device_names()]
        return Made(torch or "", ", ".join(dict.fromkeys(names)))

    def _entry(self, nodeid: str, device: str) -> KnownPeak | str:
        """Return the file's entry of a test, or why it is not compared; an empty text where it is not listed."""
        listed = self._by_test.get(clean_text(nodeid, 4096))
        if not listed:
            return ""
        kind = device.partition(":")[0]
        if kind not in listed:
            return f"the file has it on {', '.join(sorted(listed))}, and it was measured on {kind}"
        return self._peaks.why_not_compared(kind, self.made()) or listed[kind]


def _now(nodeid: str, taken: Taken, peak: Peak | None) -> KnownPeak:
    size = taken.bytes or 0
    if peak is None:
        return KnownPeak(nodeid, taken.device.partition(":")[0], size)
    return dataclasses.replace(known_peak(nodeid, peak), bytes=size)


def decode_entry(data: dict[str, Any]) -> KnownPeak:
    """Return the entry that `Ratchet` has measured in any process."""
    from pytest_gpuleak.model.peak_changes import PeakRow

    return KnownPeak(data["test"], data["device"], data["bytes"], tuple(PeakRow(*row) for row in data["parts"]))

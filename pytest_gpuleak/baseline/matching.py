"""The rules by which a baseline's entry lists a finding.

It lists findings of its test or fixture, whatever the parameters, with its fingerprint on its type of device. Kinds are
part of the fingerprint, and yet `unconfirmed` and `retained` or `growing` list each other, `growing` lists the milder
`retained`, and a fixture's `retained` and `growing` list each other: its worker may have set it up more often.

The first test to fill a cache or touch a global is charged for it. So entries of other tests also list `retained`,
`unconfirmed` and `cycle` findings whose holder has a name.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuleak.baseline.file import key_of
from pytest_gpuleak.model.findings import BaselineStatus
from pytest_gpuleak.model.fingerprint import fingerprint
from pytest_gpuleak.model.records import TestRecord, Verdict
from pytest_gpuleak.model.text import clean_text, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.baseline.file import Baseline, Key
    from pytest_gpuleak.model.findings import Finding, FindingKind, FixtureRecord, KnownLeak

MAX_TEXT = 4096
"""Longest test id or holder, in characters. Reports cut at the same length."""

ROAMING = frozenset({"retained", "unconfirmed", "cycle"})
_MILDER: dict[str, tuple[FindingKind, ...]] = {
    "growing": ("growing", "unconfirmed"),
    "retained": ("retained", "growing", "unconfirmed"),
    "unconfirmed": ("unconfirmed", "growing", "retained"),
}
"""By the kind of a test's finding, the kinds of entries that list it."""

# A parameter, a folder or a file may hold brackets; names of classes and functions have none.
_PYTHON_NAME = re.compile(r"(?:\w+::)*\w+(?=[\[@])")
SEVERITY: dict[str, int] = {"growing": 0, "retained": 1, "unconfirmed": 2}


def function_of(nodeid: str) -> str:
    """Return a test's id without its parameters, and without the group that ``--dist loadgroup`` appends after an @."""
    file, separator, rest = nodeid.partition("::")
    name = _PYTHON_NAME.match(rest)
    if name is not None:
        return f"{file}{separator}{name[0]}"
    # What no Python function is, a plugin's own kind of test.
    bracket = rest.find("[") if rest.endswith("]") else -1
    return nodeid if bracket < 1 else f"{file}{separator}{rest[:bracket]}"


def is_recorded(finding: Finding) -> bool:
    """Tell whether a baseline may list a finding: it fails, or would without a baseline, and is no budget."""
    return (finding.failed or finding.known) and finding.kind != "budget"


@dataclasses.dataclass
class _Roaming:
    """The entries of one fingerprint and device that list a finding of any test, indexed: there may be thousands."""

    largest: KnownLeak
    keys: set[Key] = dataclasses.field(default_factory=set)

    def add(self, entry: KnownLeak) -> None:
        self.keys.add(key_of(entry))
        self.largest = max(self.largest, entry, key=_size_of)


def _size_of(entry: KnownLeak) -> tuple[int, str]:
    return entry.bytes, entry.test


class Judge:
    """Match findings with a baseline's entries."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self.entries: dict[Key, KnownLeak] = {}
        self._roaming: dict[tuple[str, str], _Roaming] = {}
        self._tests: dict[str, set[tuple[str, str]]] = {}
        for entry in baseline.entries:
            self.add(entry)

    def add(self, entry: KnownLeak) -> None:
        """Add a known leak."""
        self.entries[key_of(entry)] = entry
        if entry.fixture is None:
            self._tests.setdefault(entry.test, set()).add((entry.kind, entry.device))
        if entry.kind in ROAMING:
            self._roaming.setdefault((entry.fingerprint, entry.device), _Roaming(entry)).add(entry)

    def find(self, finding: Finding, test: str, fixture: str | None) -> KnownLeak | None:
        """Return the entry that lists a finding at an `entry_place`, whatever its size; None where none does."""
        own, roaming = self._listing(finding, test, fixture)
        return own[0] if own else self._largest(roaming)

    def lists(self, test: str) -> bool:
        """Tell whether an entry lists a leak of a test (see `entry_place`)."""
        return test in self._tests

    def may_list(self, finding: Finding, test: str) -> bool:
        """Tell whether an entry lists a finding of a test, by kind and device: its holder is not known yet."""
        kinds = _MILDER.get(finding.kind, (finding.kind,))
        return any((kind, device_type(finding.device)) in self._tests.get(test, ()) for kind in kinds)

    def find_for_update(self, finding: Finding, test: str, fixture: str | None) -> tuple[KnownLeak | None, str]:
        """Return the entry to change, if any, and a new entry's reason. A fixture has its own: no order charged it."""
        own, roaming = self._listing(finding, test, fixture)
        largest = self._largest(roaming)
        if fixture is None or own:
            return own[0] if own else largest, ""
        return None, "" if largest is None else largest.reason

    def find_all(self, found: Iterable[tuple[Finding, str, str | None]]) -> set[Key]:
        """Return the keys of the entries that may list a finding: its own, or else those of any test. None is stale."""
        matched: set[Key] = set()
        met: set[int] = set()
        for finding, test, fixture in found:
            own, roaming = self._listing(finding, test, fixture)
            if own:
                matched.update(map(key_of, own))
                continue
            for entries in roaming:
                if id(entries) not in met:
                    met.add(id(entries))
                    matched |= entries.keys
        return matched

    @staticmethod
    def _largest(roaming: Sequence[_Roaming]) -> KnownLeak | None:
        return max((entries.largest for entries in roaming), key=_size_of, default=None)

    def _listing(self, finding: Finding, test: str, fixture: str | None) -> tuple[list[KnownLeak], list[_Roaming]]:
        """Return the entries of the finding's own test or fixture, closest kind first, and those of any test."""
        device = device_type(finding.device)
        marks = _fingerprints(finding, of_fixture=fixture is not None)
        keys = [(test, fixture or "", mark, device) for mark in marks]
        own = [self.entries[key] for key in keys if key in self.entries]
        if finding.kind not in ROAMING or finding.holder is None or not finding.holder.named:
            return own, []
        return own, [self._roaming[mark, device] for mark in marks if (mark, device) in self._roaming]

    def settle(self, findings: Sequence[Finding], test: str, fixture: str | None) -> tuple[Finding, ...]:
        """Return the findings of a test or fixture, judged. Those of one entry and device count as one leak."""
        findings = [_restored(finding) for finding in findings]
        entries = [self.find(found, test, fixture) if is_recorded(found) else None for found in findings]
        sizes: Counter[tuple[Key, str]] = Counter()
        for found, entry in zip(findings, entries, strict=True):
            if entry is not None:
                sizes[key_of(entry), found.device] += found.bytes
        return tuple(
            self._marked(found, entry, 0 if entry is None else sizes[key_of(entry), found.device])
            for found, entry in zip(findings, entries, strict=True)
        )

    def _marked(self, finding: Finding, entry: KnownLeak | None, size: int) -> Finding:
        if not is_recorded(finding):
            return finding
        if entry is None:
            return dataclasses.replace(finding, baseline=BaselineStatus("new", "the baseline does not list it"))
        if size <= self._baseline.limit(entry):
            reason = clean_text(entry.reason, MAX_TEXT).strip() or "no reason is given"
            return dataclasses.replace(finding, failed=False, known=True, baseline=BaselineStatus("known", reason))
        text = f"{format_bytes(size)}, {_growth(entry.bytes, size)} {format_bytes(entry.bytes)} that are listed"
        text += f"; {self._baseline.tolerance * 100:g} % more would pass"
        return dataclasses.replace(finding, baseline=BaselineStatus("grown", text))


def entry_place(record: TestRecord | FixtureRecord) -> tuple[str, str | None]:
    """Return how an entry names a test or fixture: the id of the test or place, and the fixture's name."""
    if isinstance(record, TestRecord):
        return clean_text(function_of(record.nodeid), MAX_TEXT), None
    return clean_text(record.baseid, MAX_TEXT), clean_text(record.name, MAX_TEXT)


def device_type(device: str) -> str:
    """Return the type of a device: ``cuda`` for ``cuda:1``. Which card a test gets is chance."""
    return clean_text(device.partition(":")[0].strip() or "cpu", MAX_TEXT)


def verdict_of(record: TestRecord) -> Verdict:
    """Return a test's verdict from its findings. Unchecked and allowed tests stay so; a peak is no leak."""
    if record.verdict in ("unchecked", "allowed"):
        return record.verdict
    if any(found.failed and found.kind != "budget" for found in record.findings):
        return "leaked"
    return "noted" if record.findings else "clean"


def _fingerprints(finding: Finding, *, of_fixture: bool) -> tuple[str, ...]:
    if finding.kind not in SEVERITY:
        return (finding.fingerprint,)
    kinds: Iterable[FindingKind] = ("growing", "retained", "unconfirmed") if of_fixture else _MILDER[finding.kind]
    return tuple(dict.fromkeys([finding.fingerprint, *(fingerprint(kind, finding.holder) for kind in kinds)]))


def _restored(finding: Finding) -> Finding:
    if not finding.known and finding.baseline is None:
        return finding
    return dataclasses.replace(finding, failed=finding.failed or finding.known, known=False, baseline=None)


def _growth(before: int, now: int) -> str:
    return f"{(now - before) / before * 100:.0f} % more than the" if before else "more than the"

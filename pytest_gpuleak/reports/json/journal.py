"""The journal: a report that is readable at any moment of the run, in case the run is killed.

It is a JSON report that says that it is incomplete, with a line for the head, for each test, and for the tail:

    {"schema": ..., "incomplete": "the run has not ended ...", "created": ..., ..., "tests": [
    {"nodeid": ...}
    ,{"nodeid": ...}
    ], "fixtures": [], "stale": [], "summary": {..., "running": ["the test that runs now"]}}

One write a test replaces the tail by the test's record and a new tail; a provisional record, of a test that is about to
be run again, is replaced too. So a process that dies during a write loses at most one record: `recover` reads the
others. Writes survive the process but not the machine, since nothing is flushed to the disk.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.records import SCHEMA, TestRecord
from pytest_gpuleak.model.summary import Totals
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports.atomic_write import write_text
from pytest_gpuleak.reports.json.write import MAX_TEXT, encode_line, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

NOT_ENDED = "the run has not ended (killed, crashed or still running)"
"""Text of a journal's `incomplete`."""

_HEAD_KEYS = ("schema", "incomplete", "created", "environment", "policy")
_TEST_KEYS = frozenset(TestRecord._fields)
_LATER_KEYS = {"faults", "rerun", "suspect_s", "device_wait", "helpers"}
"""Keys that an earlier release did not write."""
_ERRORS = (OSError, TypeError, ValueError)
_FLAGS = os.O_RDWR | getattr(os, "O_BINARY", 0)


def journal_path(report_paths: Sequence[Path]) -> Path:
    """Return the path of a run's journal: the first JSON report, else a file beside the first report."""
    for path in report_paths:
        if path.suffix.lower() == ".json":
            return path
    return report_paths[0].with_name(report_paths[0].name + ".partial.json")


class Journal:
    """Write a journal. No method raises: errors (a full disk) end the journal and are stated in `fault`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault: str | None = None
        """Why the journal broke off, as one line; None while it is written."""
        self._file: int | None = None
        self._identity: os.stat_result | None = None
        self._process = 0
        self._end = 0
        self._tail_at = 0
        self._first = True
        self._totals = Totals()
        self._running: tuple[str, ...] = ()
        self._fixtures = "[]"

    def begin(self, head: Mapping[str, Any]) -> None:
        """Replace an older report by an empty journal, in one step. A symbolic link is followed."""
        try:
            known = {"schema": SCHEMA, "incomplete": NOT_ENDED, **head}
            first = json.dumps(plain(known), allow_nan=False)[:-1] + ', "tests": [\n'
            tail = self._tail()
            write_text(first + tail, self.path)
            self._file = os.open(self.path, _FLAGS)
            self._identity = os.fstat(self._file)
            self._process = os.getpid()
            self._tail_at, self._end = len(first), len(first) + len(tail)
        except _ERRORS as error:
            self._break_off(error)

    def note_running(self, nodeids: Iterable[str]) -> None:
        """Record which tests are running now."""
        running = tuple(nodeids)
        if running != self._running:
            self._running = running
            self._write("")

    def add_test(self, record: Mapping[str, Any], running: Iterable[str] = ()) -> None:
        """Record an encoded test that has ended, and which tests still run."""
        self._running = tuple(running)
        self._add(record, None)

    def note_rerun(self, record: Mapping[str, Any]) -> None:
        """Write the encoded record of a test that dies during its re-run. The next write replaces it."""
        self._add(record, self._totals.copy())

    def _add(self, record: Mapping[str, Any], provisional: Totals | None) -> None:
        try:
            line = encode_line(record) + "\n"
            _count_test(provisional or self._totals, record)
        except (*_ERRORS, LookupError) as error:
            self._break_off(error)
        else:
            self._write(line if self._first else "," + line, provisional)

    def set_fixtures(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Set the findings of higher-scoped fixtures so far. They are written with the next test."""
        try:
            self._fixtures = json.dumps(plain(records), allow_nan=False)
            _count_fixtures(self._totals, records)
        except _ERRORS as error:
            self._break_off(error)

    def close(self) -> None:
        """Stop writing. The journal stays until the report is written over it."""
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            if file is not None and self._is_journal(os.fstat(file)):
                os.close(file)

    def remove(self) -> None:
        """Remove the journal, unless another run has replaced it."""
        with contextlib.suppress(OSError):
            if self._is_journal(self.path.stat()):
                self.path.unlink()

    def _tail(self, totals: Totals | None = None) -> str:
        running = json.dumps([clean_text(nodeid, MAX_TEXT) for nodeid in self._running])
        counts = (totals or self._totals).summary()
        # By hand: names that need no escape, and finite numbers, in a third of the time that json takes.
        summary = ", ".join([f'"{name}": {value!r}' for name, value in counts.items()])
        return f'], "fixtures": {self._fixtures}, "stale": [], "summary": {{{summary}, "running": {running}}}}}\n'

    def _write(self, line: str, provisional: Totals | None = None) -> None:
        """Write a record's line (empty: none) and the tail. `provisional` are the counts with a provisional record."""
        # A forked process shares the file, but its knowledge of the content is out of date.
        if self._file is None or os.getpid() != self._process:
            return
        try:
            file = self._still_open(self._file)
            data = (line + self._tail(provisional)).encode("ascii")
            # Overwrite a longer tail with blanks, which may follow a JSON document.
            data += b" " * (self._end - self._tail_at - len(data))
            _write_at(file, data, self._tail_at)
            self._end = self._tail_at + len(data)
            if provisional is None:
                self._tail_at += len(line)
                self._first = self._first and not line
        except _ERRORS as error:
            self._break_off(error)

    def _still_open(self, file: int) -> int:
        """Return the journal's descriptor. User code may close it; then its number may belong to another file."""
        with contextlib.suppress(OSError):
            if self._is_journal(os.fstat(file)):
                return file
        self._file = None
        self._file = os.open(self.path, _FLAGS)
        if not self._is_journal(os.fstat(self._file)):
            raise OSError("its file was closed, and another stands in its place")
        return self._file

    def _is_journal(self, status: os.stat_result) -> bool:
        return self._identity is not None and os.path.samestat(self._identity, status)

    def _break_off(self, error: Exception) -> None:
        self.fault = (
            f"the journal of this run in {self.path} broke off: {getattr(error, 'strerror', None) or error} "
            "(it is needed only where a run is killed)"
        )
        self.close()


def recover(text: str) -> dict[str, Any] | None:
    """Read a journal that was cut in the middle of a write; None for other text. The caller checks the records."""
    first, *lines = text.split("\n")
    document = _parse(first + "]}") if first.endswith('"tests": [') else None
    if not isinstance(document, dict) or tuple(document) != (*_HEAD_KEYS, "tests") or document["schema"] != SCHEMA:
        return None
    totals, tests = Totals(), []
    fixtures: list[Any] = []
    for line in lines:
        record = _parse(line.removeprefix(","))
        if not isinstance(record, dict) or not _TEST_KEYS - _LATER_KEYS <= record.keys() <= _TEST_KEYS:
            tail = _parse('{"tests": [' + line)
            if isinstance(tail, dict) and isinstance(tail.get("fixtures"), list):
                fixtures = tail["fixtures"]
            break
        try:
            _count_test(totals, record)
        except (KeyError, TypeError):
            break
        tests.append(record)
    try:
        _count_fixtures(totals, fixtures)
    except (KeyError, TypeError):
        fixtures = []
    head = {key: document[key] for key in _HEAD_KEYS}
    return {**head, "summary": totals.summary(), "tests": tests, "fixtures": fixtures, "stale": []}


def _count_test(totals: Totals, record: Mapping[str, Any]) -> None:
    totals.add(
        record["verdict"],
        len(record["findings"]),
        _finite(record["overhead_s"]),
        _finite(record["duration_s"]),
        rerun=record.get("rerun") is True,
    )


def _count_fixtures(totals: Totals, records: Sequence[Mapping[str, Any]]) -> None:
    totals.set_fixtures(
        sum(any(found["failed"] for found in record["findings"]) for record in records),
        sum(len(record["findings"]) for record in records),
    )


def _finite(seconds: float | None) -> float:
    return seconds if seconds is not None and math.isfinite(seconds) else 0.0


def _parse(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")


def _write_at(file: int, data: bytes, offset: int) -> None:
    while data:
        if hasattr(os, "pwrite"):
            written = os.pwrite(file, data, offset)
        else:  # Windows
            os.lseek(file, offset, os.SEEK_SET)
            written = os.write(file, data)
        data, offset = data[written:], offset + written

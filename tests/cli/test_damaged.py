"""Whatever is left of a run that was killed, and whatever stands in a file: each command gives a result or one line."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.model.findings import (
    Autograd,
    BaselineStatus,
    Contribution,
    FixtureRecord,
    Holder,
    Judged,
    KnownLeak,
    PathStep,
)
from pytest_gpuleak.model.records import encode
from pytest_gpuleak.model.source_files import Origin
from pytest_gpuleak.reports.json.journal import Journal
from pytest_gpuleak.reports.json.read import UnusableReport, read_report
from pytest_gpuleak.reports.json.write import encode_report
from tests.reports.conftest import Make
from tests.support.extremes import REPORTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Call

ROOT = pathlib.Path(__file__).parents[2]
COMMANDS = (
    ("show", "{}"),
    ("show", "-v", "{}"),
    ("show", "-q", "{}"),
    ("diff", "{}", "whole.json"),
    ("diff", "whole.json", "{}"),
    ("gate", "{}", "whole.json"),
    ("gate", "{}", "--baseline", "leaks.toml", "--fail-stale", "-v"),
    ("gate", "{}", "--only", "00aa"),
    ("merge", "{}", "{}", "whole.json", "-o", "out.json"),
    ("merge", "{}", "-o", "out.html"),
    *(("convert", "{}", "--format", form, "-o", "-") for form in ("json", "html", "sarif", "markdown", "gitlab")),
)
"""Each command, with what stands for the report."""

ORIGIN = Origin("app/model.py", 14, "forward", "self.meter.update(y)")
FULL = Make.finding(
    holder=Holder("module", "app.A", "app.A[0]", (PathStep("[0]", "list"),), "app.py", 3, 0),
    other_holders=(Holder("cache", "app.load", "app.load[0]"),),
    autograd=Autograd(1, 2, 3),
    hint="empty it",
    why_unconfirmed="it took too long",
    metric="heap",
    contributions=(Contribution("bytearray", 4, 1, ORIGIN, Holder("module", "app.B", "app.B")),),
    baseline=BaselineStatus("grown", "4 bytes"),
    judged=Judged(2, "10 sure from a settled state", ("a collection",)),
)
SHORT = Make.finding(tensors=(), holder=None)
REPORT = Make.report(
    Make.test("t.py::test_leak", FULL, memory={"host": {"heap_before": 1, "heap_after": 2}}, file="t.py", line=3),
    Make.test("t.py::test_skipped", verdict="unchecked", why_unchecked="it was skipped", outcome="skipped"),
    fixtures=(FixtureRecord("model", "module", "t.py", (FULL,), "t.py", 5),),
    stale=(KnownLeak("t.py::test_gone", None, "growing", "cuda", 4, "00aa", "app.G", "the vendor's"),),
    incomplete=None,
)


@functools.cache
def journal_bytes() -> bytes:
    """A journal of a run that was killed: three tests have ended, one was running."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(pathlib.Path(folder) / "report.json")
        journal.begin({"created": REPORT.created, "environment": REPORT.environment, "policy": REPORT.policy})
        journal.set_fixtures([encode(FixtureRecord("model", "module", "t.py", (SHORT,)))])
        for record in (*REPORT.tests, Make.test("t.py::test_größe[\x1b]")):
            journal.add_test(encode(record), ["t.py::test_next"])
        journal.close()
        return journal.path.read_bytes()


def assert_one_line(text: str) -> None:
    assert text.startswith("gpuleak: "), text
    assert text.count("\n") == 1, text
    assert text.rstrip("\n").isprintable()
    assert "Traceback" not in text
    assert "fault of its own" not in text


@pytest.fixture
def every(call: Call, folder: Path) -> Any:
    """Give a report's bytes to each command; the exit codes by command."""
    (folder / "whole.json").write_text(encode_report(REPORT))
    (folder / "leaks.toml").write_text("version = 1\n")

    def one(data: bytes, commands: tuple[tuple[str, ...], ...] = COMMANDS) -> dict[tuple[str, ...], int]:
        (folder / "damaged.json").write_bytes(data)
        codes = {}
        for command in commands:
            result = call(*(argument.replace("{}", "damaged.json") for argument in command))
            codes[command] = result.exit_code
            assert result.exit_code in (0, 1, 2), command
            if result.exit_code == 2 and "--only" not in command:
                assert_one_line(result.stderr)
                assert "damaged.json" in result.stderr
            assert "Traceback" not in result.stdout + result.stderr
        return codes

    return one


def test_the_journal_of_a_run_that_was_killed_is_read_by_every_command(every: Any, folder: Path) -> None:
    codes = every(journal_bytes())
    assert {code for command, code in codes.items() if command[0] in ("show", "convert", "merge")} == {0}
    assert {code for command, code in codes.items() if command[0] == "gate"} == {1}
    assert len(read_report(folder / "damaged.json").tests) == 3


def test_a_journal_that_is_cut_after_any_byte_gives_the_tests_of_whole_lines_or_one_line(tmp_path: Path) -> None:
    data = journal_bytes()
    lines = data.split(b"\n")
    path = tmp_path / "report.json"
    told = set()
    refused = 0
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        whole = data[:size].count(b"\n")
        try:
            report = read_report(path)
        except UnusableReport as error:
            told.add(str(error))
            refused = size
        else:
            assert report.incomplete
            # A record is whole once its last byte stands, also where the end of its line is missing.
            assert len(report.tests) in (min(3, max(0, whole - 1)), min(3, max(0, whole)))
    assert refused <= len(lines[0]), "where the head stands, the tests behind it are read"
    assert all(map(str.isprintable, told))
    assert all("empty" in line or "truncated" in line or "no JSON" in line for line in told)


def moments() -> Iterator[bytes]:
    """Every tenth cut of a journal: each command is then called."""
    data = journal_bytes()
    yield from (data[:size] for size in range(0, len(data), max(1, len(data) // 40)))


def test_a_journal_that_is_cut_is_given_to_every_command(every: Any) -> None:
    for data in moments():
        codes = every(data, COMMANDS[:4] + COMMANDS[5:9])
        assert len({code == 2 for command, code in codes.items() if "--only" not in command}) == 1


FUZZ = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    deadline=None,
    max_examples=60,
)


@st.composite
def flipped(draw: st.DrawFn) -> bytes:
    """A journal or a report of which some bytes are others, or are missing."""
    source = journal_bytes() if draw(st.booleans()) else encode_report(REPORT).encode()
    data = bytearray(source)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        change = draw(st.integers(0, 3))
        if change == 0:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif change == 1:
            data[at] = draw(st.integers(0, 255))
        elif change == 2:
            del data[at : at + draw(st.integers(1, 60))]
        else:
            data[at:at] = draw(st.binary(max_size=20))
        if not data:
            return b""
    return bytes(data)


@FUZZ
@given(data=flipped())
def test_bytes_that_are_others_give_a_result_or_one_line(every: Any, data: bytes) -> None:
    every(data)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 2**63 - 1, 2**63, -(2**70), 1.5, 1e308, "", "growing", "00aa", "\ud800", "</script>"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a document."""
    yield path
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


@st.composite
def mistyped(draw: st.DrawFn) -> bytes:
    """A report in which some values are of any type and size."""
    document = {"": json.loads(encode_report(REPORT))}
    for _ in range(draw(st.integers(1, 3))):
        *path, key = draw(st.sampled_from(list(places(document))[1:]))
        owner: Any = document
        for step in path:
            owner = owner[step]
        owner[key] = draw(VALUES)
    return json.dumps(document[""]).encode()


@FUZZ
@given(data=mistyped())
def test_values_of_any_type_give_a_result_or_one_line(every: Any, data: bytes) -> None:
    every(data)


@FUZZ
@given(report=REPORTS)
def test_what_the_plugin_writes_of_any_run_is_read_or_refused_in_one_line(every: Any, report: Any) -> None:
    every(encode_report(report).encode())


def test_an_endless_list_of_what_runs_do_not_agree_on_is_merged_in_time(every: Any) -> None:
    environment = {"devices": [f"cuda:{at}" for at in range(50_000)], "python": "3.11"}
    data = encode_report(dataclasses.replace(REPORT, environment=environment)).encode()
    every(data, (COMMANDS[8],))


def test_a_fault_of_the_command_itself_is_one_line(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a fault\nof ours")

    (folder / "whole.json").write_text(encode_report(REPORT))
    monkeypatch.setattr("pytest_gpuleak.cli.commands.render_report", fail)
    result = call("show", "whole.json")
    assert result.exit_code == 2
    assert result.stderr.startswith("gpuleak: a fault of its own: KeyError: 'a fault\\nof ours' at test_damaged.py:")
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes the streams")
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("show whole.json >&-", 0, ""),
        ("show whole.json 2>&- >&-", 0, ""),
        ("show nothing.json 2>&-", 2, ""),
        ("convert whole.json -o - >&-", 2, "gpuleak: - could not be written (standard output is closed)\n"),
        ("show - <&-", 2, "gpuleak: standard input is closed; accepted is a JSON report"),
        ("show whole.json > /dev/full", 2, "gpuleak: the output could not be written (No space left on device)\n"),
        ("convert whole.json -o - > /dev/full", 2, "gpuleak: - could not be written (No space left on device)\n"),
        ("diff whole.json whole.json > /dev/full", 2, "gpuleak: the output could not be written (No space"),
    ],
)
def test_streams_that_are_closed_or_full(folder: Path, command: str, code: int, said: str) -> None:
    if "/dev/full" in command and not os.path.exists("/dev/full"):  # noqa: PTH110 - no folder of ours
        pytest.skip("there is no device that is always full")
    (folder / "whole.json").write_text(encode_report(REPORT))
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m pytest_gpuleak {command}'],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)

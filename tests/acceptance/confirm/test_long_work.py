"""A re-run or search that takes long says so on a terminal, and nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from pytest_gpuleak.heap import long_work
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.session.rerun.notice import Notice
from tests.conftest import STAND_IN

pty = pytest.importorskip("pty", reason="needs a pseudo-terminal")

AT_ONCE = "import pytest_gpuleak.heap.long_work as work\nwork.LONG_WORK_S = 0.0\n"
"""Has any work told of, however short."""

SUITE = """
    import pytest, time

    @pytest.fixture(scope="module")
    def history():  # no global, which would be recognised without a search
        return []

    def test_before():
        pass

    def test_keeps(history):
        time.sleep(0.2)  # so that there is time to tell
        history.append(Buffer())

    def test_after():
        pass
"""
RERUN = "gpu-leak: running test_it.py::test_keeps again to tell whether it leaks: "

_SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)|(.)")


def screen(written: str) -> list[str]:
    """What a terminal shows of it in the end: lines, without colours. No line is wider than the terminal."""
    lines, row, column = [""], 0, 0
    for number, command, control, text, _ in _SEQUENCE.findall(written):
        if control == "\r":
            column = 0
        elif control == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif command == "K":
            lines[row] = lines[row][:column]
        elif command == "A":
            row -= int(number or 1)
        elif command == "G":
            column = int(number or 1) - 1
        elif text:
            lines[row] = lines[row].ljust(column)[:column] + text + lines[row][column + len(text) :]
            column += len(text)
    return lines


def run_on_terminal(project: pytest.Pytester, term: str = "xterm") -> str:
    """Return what a run writes on a terminal of its own."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "TERM": term,
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "PYTHONPATH": str(pathlib.Path(__file__).parents[3]),
    }
    plugins = [option for name in ("cacheprovider", "randomly", "hypothesispytest") for option in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "--gpu-leak", *plugins]
    with subprocess.Popen(command, cwd=project.path, env=environment, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # Linux: the other end was closed
            while chunk := os.read(ours, 65536):
                written += chunk
        os.close(ours)
    return written.decode("utf-8", "replace")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with the suite, in which any work is told of."""
    pytester.makeconftest(AT_ONCE + textwrap.dedent(STAND_IN))
    pytester.makepyfile(test_it="from tests.support.standin import Buffer\n" + textwrap.dedent(SUITE))
    return pytester


@pytest.mark.slow
def test_a_terminal_is_told_and_nothing_stays(project: pytest.Pytester) -> None:
    written = run_on_terminal(project)
    assert RERUN in written
    shown = screen(written)
    assert not [line for line in shown if "again to tell" in line or "searching for what" in line]
    assert re.search(r"test_it\.py \.\.L\.", "\n".join(shown))
    assert any("fixture 'history'" in line for line in shown)


@pytest.mark.slow
def test_a_terminal_that_erases_nothing_is_not_told(project: pytest.Pytester) -> None:
    written = run_on_terminal(project, term="dumb")
    assert "again to tell" not in written
    assert "fixture 'history'" in written


def test_what_is_no_terminal_is_not_told(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("--gpu-leak", "-p", "no:hypothesispytest")
    assert "again to tell" not in result.stdout.str() + result.stderr.str()
    assert "fixture 'history'" in result.stdout.str()


def test_a_search_tells_from_within(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "LONG_WORK_S", 0.0)
    told: list[float] = []
    budget = Budget(10**9)
    with long_work.telling(told.append):
        budget.worked(20_000)
        budget.worked(20_000)  # not told again before a second has gone by
    assert len(told) == 1
    budget.worked(20_000)
    assert len(told) == 1


def test_a_short_search_tells_nothing() -> None:
    told: list[float] = []
    with long_work.telling(told.append):
        Budget(10**9).worked(20_000)
    assert told == []


def test_a_notice_is_cut_to_the_terminal_and_puts_the_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr("pytest_gpuleak.session.rerun.notice.open_stderr", lambda: writing)
    shown = Notice("gpu-leak: \u00e9" + "x" * 100, column=12, width=60)
    shown.show(2.0)
    shown.show(3.0)
    shown.end()
    written = os.read(reading, 4096).decode()
    os.close(reading)
    assert max(map(len, screen(written.partition("\x1b[A")[0]))) < 60
    assert ": 2 s" in written
    assert screen("123456789012" + written + "3") == ["1234567890123", ""]

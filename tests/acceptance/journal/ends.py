"""Ends a run in many ways, at a random moment each, and tells what is left of it.

Each run is a process of its own: forty tests, a third of them leaking, so that the moments fall into tests, re-runs,
explanations and the writing of the reports. A plugin notes each test that has ended, past Python's buffers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuleak.reports.json.journal import NOT_ENDED
from pytest_gpuleak.reports.json.read import read_report
from tests.support.process_groups import end_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 90.0
"""Seconds after which a run hangs. On an idle machine it takes two."""

GRACE_S = 10.0
"""Seconds that processes which a run has started may take to end."""

CONFTEST = """
import os
from tests.support.standin import StandInArrays

ended = os.open(os.environ["ENDS_ENDED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
if "PYTEST_XDIST_WORKER" in os.environ:
    with open(os.environ["ENDS_ENDED"] + ".workers", "a") as stream:
        stream.write(f"{os.getpid()}\\n")


def pytest_gpuleak_arrays(config):
    return [StandInArrays()]


def pytest_runtest_logfinish(nodeid):
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.write(ended, nodeid.encode() + b"\\n")
"""
TESTS = 40
SUITE = """
import ctypes, os, sys, threading, time
import pytest
from tests.support.standin import Buffer

KEPT = []


@pytest.fixture(scope="module")
def model():
    KEPT.append(Buffer(2**21))


@pytest.mark.parametrize("i", range(TESTS))
def test_it(i, model):
    if i % 3 == 0:
        KEPT.append(Buffer(1000))
    if i % 7 == 0:
        node = [Buffer(1000)]
        node.append(node)
    if i == int(os.environ.get("ENDS_AT", "-1")):
        FATAL
    time.sleep(0.01)
"""
FATAL = {
    "os._exit": "os._exit(7)",
    # Through C: calls from Python to Python need no stack of C's from Python 3.11 on.
    "stack overflow": "sys.setrecursionlimit(10**9); f = lambda x: sorted([x], key=f); f(1)",
    "RecursionError": "f = lambda f: f(f); f(f)",
    "segmentation fault": "ctypes.string_at(0)",
    "abort": "os.abort()",
}
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
MOUNTS = ("full disk", "read-only folder")
WAYS = (
    *SIGNALS, *FATAL, *MOUNTS, "file size limit", "closed stdout", "reader gone", "worker killed", "folder removed"
)  # fmt: skip
_OWN_FRAME = re.compile(r'File "[^"]*/pytest_gpuleak/[^"]*", line \d+, in \w+')


@dataclasses.dataclass
class End:
    """What one run left.

    Attributes:
        way: how it was ended.
        faults: what is wrong with what is left, one line each; empty: nothing.
        ended: how many tests had ended.
        output: what it printed, both streams.
    """

    way: str
    faults: list[str]
    ended: int
    output: str


class Run:
    """One run, in a folder of its own.

    Args:
        folder: is made.
        way: how it is to end, one of `WAYS`.
        moments: gives the random moment.
        duration_s: seconds that a run takes which nothing ends.
        more: more text for the conftest.py.
    """

    def __init__(self, folder: Path, way: str, moments: random.Random, duration_s: float, more: str = "") -> None:
        self.folder = folder
        self._way = way
        self._moments = moments
        self._duration_s = duration_s
        self._reports = folder / "reports"
        self._reports.mkdir(parents=True)
        self._ended = folder / "ended"
        self._mounted = False
        self._file_size = moments.randrange(5_000, 40_000)  # what pytest prints, and is to be read, takes 2,000
        (folder / "conftest.py").write_text(CONFTEST + more)
        fatal = FATAL.get(way, "pass")
        (folder / "test_it.py").write_text(SUITE.replace("FATAL", fatal).replace("TESTS", str(TESTS)))
        (folder / "pytest.ini").write_text("[pytest]\n")

    def end(self) -> End:
        """Run it, end it, and look at what is left."""
        self._mount()
        try:
            process = self._start()
            self._strike(process)
            hangs = False
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                hangs = True
            left = end_group(process.pid, 0.0 if hangs else GRACE_S)
            process.wait()
            output = (self.folder / "output").read_text(errors="replace")
            faults = ["it hangs"] if hangs else ["a process is left"] if left else []
            faults += list(self._faults(output, process.returncode))
        finally:
            if self._mounted:
                subprocess.run(["umount", str(self._reports)], check=True)
        return End(self._way, faults, len(self._lines()), output)

    def _mount(self) -> None:
        if self._way == "full disk":
            size = self._moments.choice((4, 8, 12, 16, 24, 32, 48, 64)) * 1024
            mount(self._reports, "-t", "tmpfs", "-o", f"size={size}", "tmpfs")
            self._mounted = True

    def _start(self) -> subprocess.Popen[bytes]:
        plugins = ["-p", "pytest_gpuleak.plugin", "-p", "no:cacheprovider"]
        if self._way == "worker killed":
            plugins += ["-p", "xdist.plugin", "-n2"]
        if self._way == "closed stdout":
            plugins += ["-p", "no:terminal"]  # which does not start without an output
        reports = [f"--gpu-leak-report={self._reports / name}" for name in ("report.json", "report.html", "report.md")]
        command = [sys.executable, "-B", "-m", "pytest", *plugins, "--gpu-leak", *reports]
        environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("GITHUB_", "GITLAB_", "PYTEST_"))
            },
            "PYTHONPATH": os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH", "")) if path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "ENDS_ENDED": str(self._ended),
        }
        if self._way in FATAL:
            environment["ENDS_AT"] = str(self._moments.randrange(TESTS))

        def prepare() -> None:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if self._way == "file size limit":
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (self._file_size, self._file_size))
            if self._way == "closed stdout":
                os.close(1)

        with (self.folder / "output").open("wb") as output:
            piped = self._way == "reader gone"
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else output,
                stderr=output if piped else subprocess.STDOUT if self._way != "closed stdout" else output,
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509 - no thread runs here
            )

    def _strike(self, process: subprocess.Popen[bytes]) -> None:
        if self._way in FATAL or self._way in ("full disk", "file size limit", "closed stdout"):
            return
        began = time.monotonic()
        while not self._lines() and process.poll() is None and time.monotonic() - began < LIMIT_S:
            time.sleep(0.002)
        time.sleep(self._moments.uniform(0, self._duration_s))
        if self._way in SIGNALS:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(SIGNALS[self._way])
        elif self._way == "worker killed":
            workers = (self.folder / "ended.workers").read_text().split()
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self._moments.choice(workers)), signal.SIGKILL)
        elif self._way == "reader gone":
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
        elif self._way == "folder removed":
            self._reports.rename(self.folder / "moved")
        elif self._way == "read-only folder":
            # What is open stays writable, and nothing new can be made.
            mount(self._reports, "--bind", str(self._reports))
            self._mounted = True
            mount(self._reports, "-o", "remount,bind,ro")

    def _lines(self) -> list[str]:
        """The tests that had ended; the last line may be cut."""
        if not self._ended.exists():
            return []
        return [line[:-1] for line in self._ended.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def _faults(self, output: str, status: int) -> Iterator[str]:
        for block in output.split("Traceback (most recent call last):")[1:]:
            frames = re.findall(r'^(?:E   |INTERNALERROR> )? *File "([^"]+)", line \d+', block, re.MULTILINE)
            if frames and "/pytest_gpuleak/" in frames[-1] and not _is_interrupted_collection(frames, block):
                yield f"a traceback of the plugin's: {' | '.join(block.strip().splitlines()[-3:])}"
        if "INTERNALERROR" in output and _OWN_FRAME.search(output.rpartition("INTERNALERROR")[0][-400:]):
            yield "an internal error with a frame of the plugin's at its end"
        folder = (
            self.folder / "moved"
            if self._way == "folder removed" and (self.folder / "moved").exists()
            else self._reports
        )
        ended = self._lines()
        for draft in folder.glob(".gpuleak-*"):
            if status >= 0 and self._way != "SIGKILL":
                yield f"a draft is left: {draft.name}"
        path = folder / "report.json"
        if not path.exists():
            if ended and self._way not in ("full disk", "file size limit"):
                yield "there is no report"
            return
        try:
            report = read_report(path)
        except Exception as error:  # noqa: BLE001 - whatever it is, the report cannot be read
            yield f"the report cannot be read: {type(error).__name__}: {error}"
            return
        if self._way == "SIGKILL" and len(ended) < TESTS and report.incomplete != NOT_ENDED:
            yield f"the report does not say that the run has not ended, but {report.incomplete}"
        known = {test.nodeid for test in report.tests}
        missing = [nodeid for nodeid in ended if nodeid not in known]
        if missing and self._way in ("full disk", "file size limit"):
            if "gpu-leak: " not in output or "could not be written" not in output:
                yield f"{len(missing)} tests that had ended are missing, and nothing says so"
        elif missing:
            yield f"{len(missing)} of {len(ended)} tests that had ended are missing: {missing[:3]}"


def _is_interrupted_collection(frames: list[str], block: str) -> bool:
    """Whether the user's own Ctrl-C met a collection that pytest asks for at its end: its `gc.collect` is ours."""
    if frames[-1].endswith("lost_signals.py"):  # delivered to such a collection
        return True
    asked = frames[-1].endswith("/heap/collector.py") and "/_pytest/" in frames[-2]
    return asked and "\nKeyboardInterrupt" in block


def mount(folder: Path, *options: str) -> None:
    """Mount something at a folder. Raises PermissionError where that is not allowed."""
    command = ["mount", *options, str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        raise PermissionError(f"may not mount: {' '.join(command)}")


def can_mount(folder: Path) -> bool:
    """Whether a small file system can be mounted here, which takes root and a system that allows it."""
    folder.mkdir(exist_ok=True)
    try:
        mount(folder, "-t", "tmpfs", "-o", "size=64k", "tmpfs")
    except (OSError, PermissionError):
        return False
    subprocess.run(["umount", str(folder)], check=False)
    return True


def measure(folder: Path) -> float:
    """Seconds from the end of the first test to that of the process, in a run that nothing ends."""
    run = Run(folder, "RecursionError", random.Random(0), 0.0)
    process = run._start()
    while not run._lines() and process.poll() is None:
        time.sleep(0.002)
    began = time.monotonic()
    process.wait(LIMIT_S)
    return time.monotonic() - began


def end_runs(folder: Path, ways: tuple[str, ...], count: int, seed: int, tell: Callable[[End, int], None]) -> list[End]:
    """End so many runs, in these ways by turns, at moments drawn from the seed.

    Args:
        folder: exists, and is empty.
        ways: of `WAYS`.
        count: of runs.
        seed: of the moments.
        tell: called with each, and its number.
    """
    moments = random.Random(seed)
    duration_s = measure(folder / "measured")
    ends = []
    for number in range(count):
        end = Run(folder / f"run-{number}", ways[number % len(ways)], moments, duration_s).end()
        tell(end, number)
        ends.append(end)
    return ends

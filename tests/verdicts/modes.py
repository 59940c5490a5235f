"""Runs a suite in one of the ways that must not change a verdict, and reads the verdicts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING

from tests.planted.kind import WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.forked import ForkServer
    from tests.verdicts.suites import Suite

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_S = 1200
"""Seconds after which a run is ended as one that hangs."""
BUSY_PROCESSES = 3
"""Processes that keep the cores busy beside a run in the mode ``load``."""

PLUGIN = """\
import os, random, time
import pytest

MODE, ARGUMENT = os.environ["VERDICTS_MODE"], os.environ["VERDICTS_ARGUMENT"]

if MODE == "clock":  # a test of 1.2 s then takes 48 s of this clock: below the limit of re-runs, which is 60 s
    for name in ("perf_counter", "process_time", "monotonic", "time", "thread_time"):
        real = getattr(time, name)
        setattr(time, name, lambda real=real, base=real(): base + 40 * (real() - base))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    if MODE == "reversed":
        items.reverse()
    elif MODE == "shuffled":  # within its file
        order = random.Random(int(ARGUMENT))
        draws = {item: order.random() for item in items}
        items.sort(key=lambda item: (item.path, draws[item]))
    elif MODE == "last":  # a leaking test, drawn from the seed, becomes the last one
        leaking = [item for item in items if "leaks" in item.name] or items
        chosen = leaking[int(ARGUMENT) % len(leaking)]
        items.remove(chosen)
        items.append(chosen)
    elif MODE == "alone":
        items[:] = [item for item in items if item.name == ARGUMENT]
"""
"""The plugin that changes the order or the clock of a run."""

CROWD = """\
import time
import pytest
import torch

ROW = {}


@pytest.mark.parametrize("i", range(40))
def test_crowd(i):
    time.sleep(0.02)
    ROW["x"] = torch.ones(100) + i


@pytest.mark.parametrize("i", range(10))
def test_crowd_slow(i):
    time.sleep(0.15)
    ROW["x"] = torch.ones(100) + i
"""
"""Fifty suspects, which replace what there is, for the mode ``crowd``."""

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "-v": ("-v",),
    "report": ("--gpu-leak-report=report.json",),
    "reversed": (),
    "shuffled": (),
    "last": (),
    "load": (),
    "clock": (),
    "crowd": ("test_a_crowd.py",),
    "workers": ("-p", "xdist", "-n2"),
    "alone": (),
}
"""The modes, with the options of pytest in each. ``alone`` runs each test in a process of its own, the only one there."""

IN_ORDER = ("default", "-v", "report", "load", "clock", "crowd")
"""The modes that keep the order of the tests, in one process."""

_FINDING = re.compile(r"^(growing|retained|unconfirmed|cycle|unattributed|host|process|budget): ", re.MULTILINE)
_FIXTURES = re.compile(r"\d+ fixtures? leaked \(([^)]*)\)")


@dataclasses.dataclass
class Verdicts:
    """What a run said.

    Attributes:
        tests: by name ``passes``, ``noted`` (the report alone tells it), or the kinds of what failed it, as ``growing`` or
            ``growing+retained``.
        fixtures: the names of the wider fixtures that failed.
        trouble: why there are no verdicts; empty: there are.
    """

    tests: dict[str, str]
    fixtures: set[str]
    trouble: str = ""


def run_mode(suite: Suite, folder: Path, mode: str, seed: int = 0, server: ForkServer | None = None) -> Verdicts:
    """Run a suite in a mode.

    Args:
        suite: it.
        folder: an empty folder, or that of another mode of the same suite.
        mode: a key of `OPTIONS`.
        seed: of the order in the mode ``shuffled``, and of the choice in ``last``.
        server: forks the processes from one that has imported torch; without it each imports torch itself.
    """
    suite.write(folder)
    (folder / "verdicts_plugin.py").write_text(PLUGIN)
    (folder / "test_a_crowd.py").write_text(CROWD)
    files = tuple(suite.files)
    if mode != "alone":
        with _busy(BUSY_PROCESSES if mode == "load" else 0):
            return _run(folder, files, mode, str(seed), server)
    found = Verdicts({}, set())
    for test in _names(folder, files, server):
        one = _run(folder, files, mode, test, server)
        found.tests |= one.tests
        found.fixtures |= one.fixtures
        found.trouble = found.trouble or one.trouble
    return found


def faults(suite: Suite, mode: str, found: Verdicts) -> dict[str, str]:
    """Return what is wrong with the verdicts of a mode: a sentence by test or fixture. Empty: all are right."""
    wrong = {}
    for test, verdict in found.tests.items():
        expected = expected_verdict(test)
        kinds = set(verdict.split("+"))
        right = {
            "growing": bool(kinds & {"growing", "host"}),
            "fails": verdict not in ("passes", "noted"),
            "retained": kinds == {"retained"},
            "noted": verdict == "noted" or (mode != "report" and verdict == "passes"),
            "passes": verdict in ("passes", "noted"),
        }[expected]
        if not right:
            word = (
                "missed"
                if verdict in ("passes", "noted")
                else "false alarm"
                if expected in ("passes", "noted")
                else "wrong"
            )
            wrong[test] = f"{word}: {verdict} instead of {expected}: {suite.kind_of(test)}"
    sources = "\n".join(suite.files.values())
    leaking = set(re.findall(r"^@pytest\.fixture.*\ndef (\w*leaks\w*)\(", sources, re.MULTILINE))
    for name in leaking ^ found.fixtures:
        wrong[name] = "fixture: " + ("false alarm" if name in found.fixtures else "missed")
    return wrong


def expected_verdict(test: str) -> str:
    """Return the verdict that a test's name says (see `Kind`)."""
    return next((verdict for verdict, word in WORDS.items() if word in test))


def _run(folder: Path, files: tuple[str, ...], mode: str, argument: str, server: ForkServer | None) -> Verdicts:
    junit, report = folder / "junit.xml", folder / "report.json"
    for path in (junit, report):
        path.unlink(missing_ok=True)
    options = ["--junitxml=junit.xml", "--gpu-leak", *OPTIONS[mode], *files]
    try:
        done = _pytest(folder, options, mode, argument, server)
    except subprocess.TimeoutExpired:
        return Verdicts({}, set(), f"{mode}: not ended after {LIMIT_S} s")
    if not junit.exists():
        return Verdicts({}, set(), f"{mode}: exit status {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    found = Verdicts(read_junit(junit), set())
    for names in _FIXTURES.findall(done.stdout):
        found.fixtures |= set(re.findall(r"'([^']*)'", names))
    if mode == "report":  # the same is said there
        for test in json.loads(report.read_text())["tests"]:
            name, verdict = test["nodeid"].rpartition("::")[2], test["verdict"]
            if verdict in ("leaked", "unchecked"):
                kinds = {finding["kind"] for finding in test["findings"] if finding["failed"]}
                found.tests[name] = "+".join(sorted(kinds)) or verdict
            else:
                found.tests[name] = "noted" if verdict == "noted" else "passes"
    return found


def read_junit(path: Path) -> dict[str, str]:
    """Return the verdict of each test by its name (see `Verdicts`), from a JUnit file."""
    verdicts: dict[str, str] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = str(case.get("name"))
        verdict = "passes"
        for child in case:
            if child.tag in ("failure", "error"):
                kinds = sorted(set(_FINDING.findall(child.text or "")))
                verdict = "+".join(kinds) or f"failed: {(child.text or '')[:300]}"
        if verdict != "passes" or name not in verdicts:
            verdicts[name] = verdict
    return verdicts


def _names(folder: Path, files: tuple[str, ...], server: ForkServer | None) -> list[str]:
    """Return the names of the suite's tests."""
    done = _pytest(folder, ["--collect-only", *files], "default", "", server)
    return [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def _pytest(
    folder: Path, options: list[str], mode: str, argument: str, server: ForkServer | None
) -> subprocess.CompletedProcess[str]:
    paths = (str(folder), os.environ.get("PYTHONPATH") or str(ROOT))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_", "GITLAB_"))},
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",
        "VERDICTS_MODE": mode,
        "VERDICTS_ARGUMENT": argument,
    }
    plugins = ["-p", "verdicts_plugin", "-p", "pytest_gpuleak.plugin", "-p", "no:cacheprovider", "-W", "ignore"]
    arguments = ["-mpytest", "-q", *plugins, *options]
    if server is not None:
        return server.run(arguments, environment, folder, LIMIT_S)
    return subprocess.run(
        [sys.executable, "-B", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    """Keep the cores busy with so many processes."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(10_000))"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()

"""However a run ends, a readable report is left with every test that had ended, and no process."""

from __future__ import annotations

import os
import random
import sys
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.journal import ends
from tests.acceptance.journal.ends import FATAL, MOUNTS, WAYS, End, Run, can_mount, end_runs

if TYPE_CHECKING:
    from pathlib import Path

ENDS = int(os.environ.get("GPULEAK_TEST_ENDS", "4"))
"""How many runs are ended; benchmarks/kills.py ends more."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="mounts, limits and process groups as Linux has them"),
]

FORGETS = """
import pytest_gpuleak.reports.json.journal

pytest_gpuleak.reports.json.journal.Journal.add_test = lambda *arguments, **options: None
"""
RAISES = """
import pytest_gpuleak.session.records.recorder

pytest_gpuleak.session.records.recorder.RECORD_ATTRIBUTE = None
"""


def test_runs_that_end_in_any_way(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    ways = [way for way in WAYS if way != "SIGKILL" and (way not in MOUNTS or can_mount(tmp_path / "mount"))]
    if "xdist" not in sys.modules:
        pytest.importorskip("xdist")
    random.Random(seed).shuffle(ways)
    found = end_runs(tmp_path, ("SIGKILL", *ways), ENDS, seed, lambda end, number: None)
    assert len(found) == ENDS
    assert [(seed, end.way, fault) for end in found for fault in end.faults] == []


def end(folder: Path, way: str, more: str) -> End:
    # Struck a quarter of a second after the first test has ended.
    return Run(folder / "run", way, random.Random(1), 0.25, more).end()


def test_tests_that_are_lost_are_found(tmp_path: Path) -> None:
    found = end(tmp_path, "SIGKILL", FORGETS)
    assert found.ended
    assert "had ended are missing" in found.faults[0]


def test_a_failure_of_the_plugin_is_found(tmp_path: Path) -> None:
    found = end(tmp_path, "RecursionError", FORGETS + RAISES)
    assert any("internal error" in fault or "traceback" in fault for fault in found.faults), found.output


def test_a_process_that_is_left_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "GRACE_S", 0.1)
    stays = "import subprocess\nsubprocess.Popen(['sleep', '60'])\n"
    assert "a process is left" in end(tmp_path, "os._exit", stays).faults


def test_the_ways_end_a_run_as_they_say(tmp_path: Path) -> None:
    for number, way in enumerate(FATAL):
        if way != "RecursionError":  # a failed test, and no end
            run = Run(tmp_path / str(number), way, random.Random(1), 0.0)
            assert run._start().wait(60) not in (0, 1), way

"""A run that is killed with SIGKILL at any moment leaves a readable report with every test that had ended."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys

import pytest

from pytest_gpuleak.reports.json.journal import NOT_ENDED
from pytest_gpuleak.reports.json.read import read_report

KILLS = int(os.environ.get("GPULEAK_TEST_KILLS", "3"))
"""How many runs are killed."""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_that_is_killed_leaves_every_test_that_had_ended(tmp_path: pathlib.Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    script = pathlib.Path(__file__).with_name("killing.py")
    killing = [sys.executable, str(script), str(tmp_path), str(KILLS), str(seed)]
    # No other plugin, for speed.
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p pytest_gpuleak.plugin"}
    subprocess.run(killing, check=True, env={**os.environ, **alone})
    for index in range(KILLS):
        folder = tmp_path / f"killed-{index}"
        # A line of its own may be cut as well.
        ended = [line for line in (folder / "ended").read_text().splitlines(keepends=True) if line.endswith("\n")]
        report = read_report(folder / "report.json")
        assert report.incomplete == NOT_ENDED, seed
        found = [test.nodeid for test in report.tests]
        assert [line.rstrip("\n") for line in ended] == found[: len(ended)], seed
        assert len(found) <= len(ended) + 1, seed
        assert {test.verdict for test in report.tests} == {"clean"}

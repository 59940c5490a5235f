"""A slow test is run again for the host's memory alone only where that is a small part of the session."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [pytest.mark.slow, pytest.mark.skipif("sys.platform != 'linux'", reason="reads malloc's heap")]

SUITE = """
    import time

    from tests.support.standin import Buffer

    RUNS = []
    KEPT = []

    def test_host():
        RUNS.append("host")
        KEPT.append(bytearray(12 * 2**20))
        time.sleep(0.3)

    def test_array():
        RUNS.append("array")
        KEPT.append([Buffer(64), bytearray(12 * 2**20)])
        time.sleep(0.3)

    def test_runs():
        assert (RUNS.count("host") > 1) == {again}
        assert RUNS.count("array") > 1
"""


@pytest.mark.parametrize(
    ("share", "again", "verdict"),
    [(0.0, False, "clean"), (1e6, True, "leaked")],
)
def test_a_slow_test_that_grew_the_host(
    run: Runner, monkeypatch: pytest.MonkeyPatch, share: float, again: bool, verdict: str
) -> None:
    host_reruns = importlib.import_module("pytest_gpuleak.engine.host_reruns")
    monkeypatch.setattr(host_reruns, "RERUN_S", 0.1)
    monkeypatch.setattr(host_reruns, "RERUN_SHARE", share)
    monkeypatch.setattr(host_reruns, "SLOW_RERUN_S", 60.0)  # no second test need grow alike
    found = run(SUITE.replace("{again}", repr(again)), "--gpu-leak-confirm=1")
    found.result.assert_outcomes(passed=3)
    assert found.verdicts["test_host"] == verdict
    assert found.verdicts["test_array"] == "leaked"

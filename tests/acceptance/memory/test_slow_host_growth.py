"""A slow test is run again for the host's memory alone, as a quick one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [pytest.mark.slow, pytest.mark.skipif("sys.platform != 'linux'", reason="reads malloc's heap")]

SUITE = """
    import time

    import pytest

    from tests.support.standin import Buffer

    KEPT = []

    @pytest.mark.parametrize("number", range(8))
    def test_quick(number):
        pass

    def test_host():
        KEPT.append(bytearray(12 * 2**20))
        time.sleep(0.3)

    def test_array():
        KEPT.append([Buffer(64), bytearray(12 * 2**20)])
        time.sleep(0.3)

    def test_scratch():
        assert bytearray(30 * 2**20)

    def test_first_use():
        if not any(type(one) is str for one in KEPT):
            KEPT.append("x" * 30 * 2**20)
"""


def test_a_slow_test_that_grew_the_host(run: Runner) -> None:
    found = run(SUITE)
    leaked = {name for name, verdict in found.verdicts.items() if verdict == "leaked"}
    assert leaked == {"test_host", "test_array"}
    findings = {one["kind"]: one for one in found.tests["test_array"]["findings"]}
    assert {kind: one["failed"] for kind, one in findings.items()} == {"growing": True, "host": True}
    assert any("KEPT" in part["holder"]["text"] for part in findings["host"]["contributions"])

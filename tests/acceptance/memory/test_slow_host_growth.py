"""A slow test is run again for the host's memory alone, as a quick one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

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
    kinds = {one["kind"]: one["failed"] for one in found.tests["test_array"]["findings"]}
    assert kinds == {"growing": True, "host": True}


LEAKS_BOTH = """
    BUFFERS, TEXTS = [], []

    def test_it():
        TEXTS.append("x" * 30_000_000)
        BUFFERS.append(Buffer())
"""


def host_of(found: Run) -> dict[str, Any]:
    findings = {one["kind"]: one for one in found.tests["test_it"]["findings"]}
    assert findings["growing"]["failed"]
    host: dict[str, Any] = findings["host"]
    return host


def test_the_hosts_memory_is_recorded_beside_a_leak(run: Runner) -> None:
    host = host_of(run(LEAKS_BOTH))
    assert host["failed"]
    assert any("TEXTS" in part["holder"]["text"] for part in host["contributions"])

"""The host's memory is judged the same where arrays fail a test already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

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

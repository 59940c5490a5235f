"""Where arrays fail a test already, little time goes on what else its runs add to the host's memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

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


def test_the_hosts_memory_is_recorded_while_seconds_are_left(run: Runner) -> None:
    host = host_of(run(LEAKS_BOTH))
    assert host["failed"]
    assert any("TEXTS" in part["holder"]["text"] for part in host["contributions"])


def test_a_leaks_host_memory_is_a_note_once_such_records_have_taken_long(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = importlib.import_module("pytest_gpuleak.engine.confirm.walk_limits")
    monkeypatch.setattr(limits, "FREE_BESIDE_LEAK_S", -1.0)
    host = host_of(run(LEAKS_BOTH))
    assert not host["failed"]
    assert host["evidence"][-1].startswith("not looked into by one more re-run, since the test fails already")
    assert not host["contributions"]

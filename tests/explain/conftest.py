"""Searches that have the time of a loaded machine."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuleak.explain.explain import explain

AMPLE_S = 60.0
"""Seconds. With the default 5 s a search beside a busy worker's other tests ends as "unknown (ran out of time)"."""


@pytest.fixture(autouse=True)
def ample_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a search that states no budget enough time to end; tests of the budget state one."""
    defaults: Any = explain.__kwdefaults__
    monkeypatch.setitem(defaults, "budget_s", AMPLE_S)

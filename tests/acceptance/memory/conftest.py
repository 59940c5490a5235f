"""Runs of pytest for what happens when memory runs out, and after a failed test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner


@pytest.fixture
def run_wired(run: Runner) -> Runner:
    """As `run`, without pytest-rerunfailures, whose own handling of a failed test's frames would be seen."""

    def start(source: str, *arguments: str, apart: bool = False, plugin: str = "--gpu-leak") -> Run:
        return run(source, "-p", "no:rerunfailures", *arguments, apart=apart, plugin=plugin)

    return start

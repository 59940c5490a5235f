"""Arrays that are made after a run, at the addresses of arrays that have died, are not what the run has left."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.newest

HOOK = """
    from tests.support.standin import Buffer

    MADE = []

    def pytest_gpuleak_settle(config, nodeid):
        MADE.extend(Buffer(8) for _ in range(2000))
"""

SUITE = """
    import atexit

    LAST, RUNS = [], []

    def test_first_run_leaves_more():
        kept = Buffer(2**20)
        atexit.register(lambda: kept)  # no known root: the heap is searched
        LAST[:] = [Buffer(3000) for _ in range(0 if RUNS else 1000)]
        RUNS.append(1)
"""


def test_what_a_settle_hook_makes_is_not_taken_for_what_has_died(run: Runner, pytester: pytest.Pytester) -> None:
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + "\n" + textwrap.dedent(HOOK))
    found = run(SUITE)
    findings = found.tests["test_first_run_leaves_more"]["findings"]
    assert [one["holder"] for one in findings if one["holder"] and "MADE" in one["holder"]["text"]] == []
    # All of the 1,000, but for one that the array kept in the re-run is taken to replace.
    assert [one["count"] for one in findings if one["kind"] == "retained"] == [999]

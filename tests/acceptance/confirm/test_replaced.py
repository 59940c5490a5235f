"""Suspects that leave as little, in the place of what the one before left: one more re-run tells nothing new."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.confirm.test_harness import COUNTED, runs

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.interpreter

SUITE = f"""{COUNTED}
    import pytest
    from pytest_gpuleak.engine import replaced_record

    replaced_record.FREE_S = replaced_record.SHARE = 0.0  # as if the session had spent its time

    STORE, HISTORY, LOSSES = {{}}, [], []

    @pytest.mark.parametrize("number", range(6))
    def test_replaces(number):
        note("replaces")
        STORE["loader"] = Buffer()

    def test_grows_beside():
        note("grows")
        STORE["loader"] = Buffer()
        HISTORY.append(Buffer())

    def test_replaces_again():
        note("replaces again")
        STORE["loader"] = Buffer()

    def test_grows_alike():
        note("grows alike")
        LOSSES.append(Buffer())
"""


def test_only_what_tells_something_new_is_run_again(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(SUITE, report=False)
    found.result.assert_outcomes(passed=9)
    found.result.stdout.fnmatch_lines(["gpu-leak: 2 leaked, 7 noted*"])
    found.result.stdout.fnmatch_lines(["LEAKED test_it.py::test_grows_beside", "LEAKED test_it.py::test_grows_alike"])
    # The first two of the six are run again; after a leak, whose history lives, all are.
    assert runs(pytester) == {"replaces": 8, "grows": 2, "replaces again": 2, "grows alike": 2}


def test_a_reader_of_notes_gets_each_confirmed(run: Runner, pytester: pytest.Pytester) -> None:
    run(SUITE, "-v", report=False)
    assert runs(pytester)["replaces"] == 12

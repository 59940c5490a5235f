"""Suspects that leave as little, in the place of what the one before left: one more re-run tells nothing new."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.engine import replaced_record, rerun_worth
from tests.acceptance.confirm.test_harness import COUNTED, runs

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.interpreter


@pytest.fixture(autouse=True)
def time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the session had spent its time for such re-runs, which take long."""
    monkeypatch.setattr(replaced_record, "FREE_S", 0.0)
    monkeypatch.setattr(replaced_record, "SHARE", 0.0)
    monkeypatch.setattr(rerun_worth, "QUICK_RERUN_S", -1.0)


SUITE = f"""{COUNTED}
    import pytest

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


def test_other_shapes_that_wait_in_cycles_are_not_run_again(run: Runner, pytester: pytest.Pytester) -> None:
    source = f"""{COUNTED}
    import gc
    import pytest

    class Model:
        def __init__(self, size):
            self.itself, self.batch = self, Buffer(size)

    LAST, HISTORY = [], []

    @pytest.mark.parametrize("number", range(8))
    def test_first(number):
        note("first")
        LAST[:] = [Model(8 + number)]

    def test_collects():
        gc.collect()

    @pytest.mark.parametrize("number", range(8))
    def test_next(number):
        note("next")
        LAST[:] = [Model(20 - number)]

    def test_grows_by_more():
        note("grows")
        HISTORY.append(Buffer(4096))
    """
    found = run(source, report=False)
    found.result.stdout.fnmatch_lines(["gpu-leak: 1 leaked, 16 noted*"])
    found.result.stdout.fnmatch_lines(["LEAKED test_it.py::test_grows_by_more"])
    assert runs(pytester) == {"first": 16, "next": 9, "grows": 2}  # the last of the next: more wait than did before


def test_leaks_alike_after_a_row_that_was_replaced_are_found(run: Runner) -> None:
    source = f"""{COUNTED}
    import pytest

    LAST, HISTORY = [], []

    @pytest.mark.parametrize("number", range(10))
    def test_replaces(number):
        LAST[:] = [Buffer(8 + number)]

    @pytest.mark.parametrize("number", range(10))
    def test_leaks(number):
        HISTORY.append(Buffer(8))
    """
    found = run(source, report=False)
    found.result.stdout.fnmatch_lines(["gpu-leak: 10 leaked, 10 noted*"])


def test_a_leak_alike_that_hangs_on_a_known_root_is_told_by_a_quick_re_run(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a collection, which tells garbage of old objects from a leak: no root leads to garbage."""
    monkeypatch.setattr(rerun_worth, "QUICK_RERUN_S", 60.0)
    source = f"""{COUNTED}
    import pytest, types

    OLD, HISTORY = [types.SimpleNamespace() for _ in range(40)], []

    def leave_garbage():
        old = OLD.pop()
        old.itself, old.buffer = old, Buffer()

    @pytest.mark.parametrize("number", range(8))
    def test_garbage(number):
        note("garbage")
        leave_garbage()

    def test_leaks():
        note("leaks")
        HISTORY.append(Buffer())

    def test_more_garbage():
        leave_garbage()
    """
    found = run(source, report=False)
    found.result.stdout.fnmatch_lines(["gpu-leak: 1 leaked*"])
    found.result.stdout.fnmatch_lines(["LEAKED test_it.py::test_leaks*held by test_it.HISTORY*"])
    assert runs(pytester) == {"garbage": 16, "leaks": 2}

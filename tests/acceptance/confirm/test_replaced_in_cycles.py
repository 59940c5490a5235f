"""What a re-run replaces may wait in a reference cycle: it is not taken for growth, and hides none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Runner

pytestmark = pytest.mark.newest

TRAINERS = """
    import pytest
    KEPT = []

    class Trainer:
        '''Part of a cycle, as a trainer is that its callbacks refer to.'''
        def __init__(self, sizes=(4096, 16)):
            self.callback = [self]
            self.buffers = [Buffer(size) for size in sizes]

    class Data:
        trainer = None

    @pytest.fixture(scope="module")
    def data():
        return Data()
"""


@pytest.mark.interpreter
def test_a_fixture_that_refers_to_its_latest_user_is_no_leak_and_hides_none(run: Runner) -> None:
    found = run(
        f"""{TRAINERS}
    ALIKE, RUNS, LATE = [], [], []

    @pytest.mark.parametrize("number", range(4))
    def test_fit(data, number):
        data.trainer = Trainer()

    def test_leaks_beside_it(data):
        data.trainer = Trainer()
        KEPT.append(Buffer(4096))

    def test_leaks_beside_garbage_alike():
        Trainer((4096, 4096, 4096))
        ALIKE.append(Buffer(4096))

    @pytest.fixture(scope="class")
    def table():
        return Buffer(512)

    def test_leaks_where_the_re_run_sets_a_fixture_up(data, request):
        data.trainer = Trainer()
        RUNS.append(1)
        if len(RUNS) > 1:
            request.getfixturevalue("table")
        LATE.append(Buffer(4096))
    """,
        "-p",
        "no:rerunfailures",
        report=False,
    )
    found.result.stdout.fnmatch_lines(
        [
            "gpu-leak: 3 leaked, 4 noted*",
            "LEAKED test_it.py::test_leaks_beside_it*4.0 KiB held by*test_it.KEPT*",
            "LEAKED test_it.py::test_leaks_beside_garbage_alike*4.0 KiB held by*test_it.ALIKE*",
            "LEAKED test_it.py::test_leaks_where_the_re_run_*4.0 KiB held by*test_it.LATE*",
        ]
    )


@pytest.mark.interpreter
def test_where_a_class_is_set_up_again_it_hides_no_growth(run: Runner) -> None:
    """The first re-run was taken to add two buffers, of which one had replaced the first run's; a test run twice adds two."""
    found = run(
        f"""{TRAINERS}
    class TestFit:
        @classmethod
        def setup_class(cls):
            cls.table = Buffer(4096)

        def test_fit(self, data):
            data.trainer = Trainer((4096,))

        def test_leaks(self, data):
            data.trainer = Trainer((4096,))
            KEPT.append(Buffer(4096))

    class TestPredict:
        @classmethod
        def setup_class(cls):
            cls.table = Buffer(4096)

        def test_predict(self, data):
            data.trainer = Trainer((4096,))

    def test_last(data):
        assert data.trainer
    """
    )
    assert found.verdicts == {
        "TestFit::test_fit": "noted",
        "TestFit::test_leaks": "leaked",
        "TestPredict::test_predict": "noted",
        "test_last": "clean",
    }


@pytest.mark.parametrize("kept", ["KEPT", "store.KEPT"])
def test_an_earlier_tests_garbage_is_not_what_a_leak_replaces(
    run: Runner, install: Callable[[dict[str, str]], None], kept: str
) -> None:
    """Before the first re-run, the leak's own arrays alone were shown to be no garbage: by a walk down, or by one up."""
    install({"__init__": "", "store": "KEPT = []"})
    found = run(
        f"""{TRAINERS}
    import gc
    from library import store

    def test_leaves(data):
        data.trainer = Trainer()

    def test_empties(data):
        data.trainer = None

    def test_leaks(data):
        {kept}.extend(Trainer().buffers)
        if len({kept}) > 2:
            gc.collect()
    """,
        "--gpu-leak-cycles=fail",
    )
    assert found.verdicts["test_leaks"] == "leaked"


def test_what_the_run_for_lines_replaced_is_no_excuse_for_the_next_test(run: Runner) -> None:
    found = run(
        f"""{TRAINERS}
    SLOTS = {{}}

    def test_keeps_a_large_trainer():
        SLOTS["trainer"] = Trainer((2 << 20,))

    def test_keeps_what_is_large():
        SLOTS["buffer"] = Buffer(3 << 19)
    """
    )
    assert [test["verdict"] for test in found.report["tests"]] == ["leaked", "leaked"]

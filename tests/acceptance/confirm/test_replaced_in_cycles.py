"""What a re-run replaces may wait in a reference cycle: it is not taken for growth, and hides none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.interpreter

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

SHOWN = pytest.mark.parametrize("options", [[], ["-v"]], ids=["", "verbose"])


@SHOWN
def test_a_fixture_that_refers_to_its_latest_user_is_no_leak(run: Runner, options: list[str]) -> None:
    found = run(
        f"""{TRAINERS}
    @pytest.mark.parametrize("number", range(4))
    def test_fit(data, number):
        data.trainer = Trainer()
    """,
        "-p",
        "no:rerunfailures",
        *options,
        report=bool(options),
    )
    assert found.result.ret == 0
    found.result.stdout.fnmatch_lines(["gpu-leak: 0 leaked, 4 noted*" if not options else "gpu-leak: 0 leaked*"])


@SHOWN
def test_a_leak_beside_it_is_found(run: Runner, options: list[str]) -> None:
    found = run(
        f"""{TRAINERS}
    def test_fit(data):
        data.trainer = Trainer()

    def test_leaks(data):
        data.trainer = Trainer()
        KEPT.append(Buffer(4096))
    """,
        *options,
        report=bool(options),
    )
    found.result.stdout.fnmatch_lines(["gpu-leak: 1 leaked, 1 noted*", "LEAKED test_it.py::test_leaks*test_it.KEPT*"])


@SHOWN
def test_garbage_like_it_hides_no_leak(run: Runner, options: list[str]) -> None:
    found = run(
        f"""{TRAINERS}
    def test_leaks():
        Trainer((4096, 4096, 4096))
        KEPT.append(Buffer(4096))
    """,
        *options,
        report=bool(options),
    )
    found.result.stdout.fnmatch_lines(
        ["gpu-leak: 1 leaked*", "LEAKED test_it.py::test_leaks*4.0 KiB held by*test_it.KEPT*"]
    )


COUNTED = f"""{TRAINERS}
    import importlib, pathlib
    steps = importlib.import_module("pytest_gpuleak.engine.settle.steps")
    MADE = []

    def count(generation, collect=steps.collect):
        MADE.append(generation)
        return collect(generation)

    steps.collect = count
"""
"""Counts each collection that a settle step makes; the last test writes it down."""

WRITE_COUNT = """
    def test_write_count():
        pathlib.Path("count.txt").write_text(str(len(MADE)))
"""


def test_what_is_replaced_takes_no_collection_of_the_whole_heap(run: Runner, pytester: pytest.Pytester) -> None:
    count = pytester.path / "count.txt"
    # In processes of their own: among the objects of a long session, recognition runs out of time, and a search follows.
    found = run(
        f"""{COUNTED}
    @pytest.mark.parametrize("number", range(8))
    def test_fit(data, number):
        data.trainer = Trainer()
{WRITE_COUNT}""",
        apart=True,
        report=False,
    )
    found.result.stdout.fnmatch_lines(["gpu-leak: 0 leaked, 8 noted*"])
    # The first suspect looks for random generators on the whole heap, which ends its epoch; the fixture's check makes one too.
    assert int(count.read_text()) < 8
    found = run(
        f"""{COUNTED}
    def test_grows():
        KEPT.append(Trainer())
{WRITE_COUNT}""",
        apart=True,
        report=False,
    )
    found.result.stdout.fnmatch_lines(["gpu-leak: 1 leaked*"])
    # What grows is told apart from garbage by a collection of the whole heap.
    assert int(count.read_text()) > 0


@SHOWN
def test_a_leak_that_a_fixture_set_up_in_the_re_run_hides_is_found(run: Runner, options: list[str]) -> None:
    found = run(
        f"""{TRAINERS}
    RUNS = []

    @pytest.fixture(scope="class")
    def table():
        return Buffer(512)

    def test_leaks(data, request):
        data.trainer = Trainer()
        RUNS.append(1)
        if len(RUNS) > 1:
            request.getfixturevalue("table")
        KEPT.append(Buffer(4096))
    """,
        *options,
        report=bool(options),
    )
    found.result.stdout.fnmatch_lines(["LEAKED test_it.py::test_leaks*4.0 KiB held by*test_it.KEPT*"])

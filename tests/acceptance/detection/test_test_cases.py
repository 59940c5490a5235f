"""Instances of `unittest.TestCase` that refer to themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.engine.detect.young_arrays import make_young
from pytest_gpuleak.heap.collector import epochs_supported

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [
    pytest.mark.newest,
    pytest.mark.skipif(
        make_young() is None or not epochs_supported(),
        reason="this interpreter's collector cannot be told what is young",
    ),
]

CASE = """
    import unittest
    KEPT = []

    class Base(unittest.TestCase):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.addTypeEqualityFunc(Buffer, self.assert_equal_buffers)
            self.older = Buffer(64)

        def assert_equal_buffers(self, first, second, msg=None):
            pass

        def setUp(self):
            self.buffer = Buffer(4096)
"""


def test_what_it_stores_goes_with_its_cycle(run: Runner) -> None:
    """As `torch.testing`'s own and most libraries' base classes do."""
    found = run(
        f"""{CASE}
    class TestIt(Base):
        def test_one(self): pass
        def test_two(self): pass
        def test_three(self): pass
    """
    )
    found.result.stdout.fnmatch_lines(["gpu-leak: 0 leaked, 3 noted, 0 clean*"])
    for test in found.tests.values():
        (finding,) = test["findings"]
        assert (finding["kind"], finding["bytes"]) == ("cycle", 4096)
        assert test["suspect_s"].get("reruns", 0) == 0


def test_a_function_that_closes_over_it_is_part_of_its_cycle(run: Runner) -> None:
    """poutyne's tests give a model a loss that is a lambda; such a cycle was retained memory, and searched for."""
    found = run("""
    import unittest

    class Model:
        def __init__(self, loss):
            self.loss = loss

    class TestIt(unittest.TestCase):
        def setUp(self):
            self.buffer = Buffer(4096)
            self.model = Model(lambda: self.buffer)

        def test_one(self): pass
    """)
    (finding,) = found.tests["TestIt::test_one"]["findings"]
    assert (finding["kind"], finding["judged"]["step"]) == ("cycle", "1 young")


def test_what_it_leaks_is_found(run: Runner) -> None:
    found = run(
        f"""{CASE}
    class TestIt(Base):
        def test_array(self):
            KEPT.append(Buffer(64))

        def test_itself(self):
            KEPT.append(self)
    """
    )
    assert found.verdicts == {"TestIt::test_array": "leaked", "TestIt::test_itself": "leaked"}
    assert {one["bytes"] for one in found.tests["TestIt::test_array"]["findings"] if one["failed"]} == {64}

"""A re-run must not change what the next test computes with a model that it shares."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]


MODEL = """
    import pytest, torch

    KEPT = []

    class Cell(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(300))
            self.state = torch.zeros(300)
            self.calls = 0

        def forward(self, value):
            self.calls += 1
            self.state = self.state + value * self.weight
            return self.state

    def train(cell, optimizer):
        cell(torch.ones(300)).sum().backward()
        cell.state = cell.state.detach()
        optimizer.step()

    def make():
        cell = Cell()
        return cell, torch.optim.SGD(cell.parameters(), lr=0.5, momentum=0.5)

    def check(cell, optimizer, other=make()):
        train(*other)
        train(*other)
        train(cell, optimizer)
        assert cell.calls == 2
        assert torch.equal(cell.weight, other[0].weight)
        assert torch.equal(cell.weight.grad, other[0].weight.grad)
        assert torch.equal(cell.state, other[0].state)
"""

SHARED = {
    "module_fixture": """
    @pytest.fixture(scope="module")
    def trained():
        return make()

    def test_first(trained):
        train(*trained)
        {leak}

    def test_second(trained):
        check(*trained)
    """,
    "late_fixture": """
    @pytest.fixture(scope="session")
    def trained():
        return {{"run": make()}}

    def test_first(request):
        train(*request.getfixturevalue("trained")["run"])
        {leak}

    def test_second(trained):
        check(*trained["run"])
    """,
    "class": """
    import unittest

    class TestCell(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.cell, cls.optimizer = make()

        def test_first(self):
            train(self.cell, self.optimizer)
            {leak}

        def test_second(self):
            check(self.cell, self.optimizer)
    """,
    "module": """
    CELL, OPTIMIZER = make()

    def test_first():
        train(CELL, OPTIMIZER)
        {leak}

    def test_second():
        check(CELL, OPTIMIZER)
    """,
}
LEAKING = SHARED["module_fixture"].format(leak="KEPT.append(torch.ones(300))")
GROWING = """
    @pytest.fixture(scope="module")
    def cell():
        cell = Cell()
        cell.history = []
        return cell

    def test_first(cell):
        cell.history.append(cell(torch.ones(300)).detach())

    def test_second(cell):
        assert cell.calls == 1
"""


def test_what_is_shared_is_as_after_one_run_and_what_is_replaced_there_is_a_note(
    run: Runner, pytester: pytest.Pytester
) -> None:
    """Gradients and a hidden state replace each other: they do not grow, and the next test sees them once.

    All in one process: an optimizer's first step imports torch's compiler, 120,000 objects for each search after it.
    """
    pytest.importorskip("torch")
    suites = {name: suite.format(leak="pass") for name, suite in SHARED.items()} | {"leaks": LEAKING, "grows": GROWING}
    pytester.makepyfile(**{f"test_{name}": textwrap.dedent(MODEL + suite) for name, suite in suites.items()})
    found = run("", apart=True)
    found.result.assert_outcomes(passed=2 * len(suites))
    tests = {test["nodeid"]: test for test in found.report["tests"]}
    assert {nodeid for nodeid, test in tests.items() if test["verdict"] == "leaked"} == {
        "test_leaks.py::test_first",
        "test_grows.py::test_first",
    }
    failed = [one for one in tests["test_leaks.py::test_first"]["findings"] if one["failed"]]
    assert [one["holder"]["root"] for one in failed] == ["test_leaks.KEPT"]
    (finding,) = tests["test_grows.py::test_first"]["findings"]
    assert finding["kind"] == "growing"
    assert finding["holder"]["text"].startswith("fixture 'cell'.history[")

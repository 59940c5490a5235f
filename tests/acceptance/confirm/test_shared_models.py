"""A re-run must not change what the next test computes with a model that it shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def compiler_is_imported() -> None:
    """An optimizer's first step imports torch's compiler, which each run in this process would import anew and break."""
    torch: Any = pytest.importorskip("torch")
    parameter = torch.ones(1, requires_grad=True)
    parameter.sum().backward()
    torch.optim.SGD([parameter]).step()


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
    "a fixture of the module": """
    @pytest.fixture(scope="module")
    def trained():
        return make()

    def test_first(trained):
        train(*trained)
        {leak}

    def test_second(trained):
        check(*trained)
    """,
    "a fixture that is asked for late": """
    @pytest.fixture(scope="session")
    def trained():
        return {{"run": make()}}

    def test_first(request):
        train(*request.getfixturevalue("trained")["run"])
        {leak}

    def test_second(trained):
        check(*trained["run"])
    """,
    "a class": """
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
    "a module": """
    CELL, OPTIMIZER = make()

    def test_first():
        train(CELL, OPTIMIZER)
        {leak}

    def test_second():
        check(CELL, OPTIMIZER)
    """,
}


def test_what_a_leaking_test_shares_is_as_after_one_run(run: Runner) -> None:
    found = run(MODEL + SHARED["a fixture of the module"].format(leak="KEPT.append(torch.ones(300))"))
    found.result.assert_outcomes(passed=2)
    first = found.report["tests"][0]
    assert first["verdict"] == "leaked"
    assert [one["holder"]["root"] for one in first["findings"] if one["failed"]] == ["test_it.KEPT"]


@pytest.mark.parametrize("suite", SHARED.values(), ids=SHARED)
def test_state_left_in_a_shared_model_is_a_note(suite: str, run: Runner) -> None:
    """Gradients and a hidden state replace each other: they do not grow, and the next test sees them once."""
    found = run(MODEL + suite.format(leak="pass"))
    found.result.assert_outcomes(passed=2)
    assert all(test["verdict"] != "leaked" for test in found.report["tests"])


def test_a_model_that_grows_still_leaks(run: Runner) -> None:
    found = run(
        MODEL
        + """
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
    )
    found.result.assert_outcomes(passed=2)
    (finding,) = found.report["tests"][0]["findings"]
    assert finding["kind"] == "growing"
    assert finding["holder"]["text"].startswith("fixture 'cell'.history[")

"""Cycles that the collector does not see: through hooks of parameters, and through NumPy arrays of objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.torch

# As pytorch-optimizer's LOMO does: the optimizer's step is a hook of each parameter.
HOOKS = """
    import pytest, torch

    class Optimizer:
        def __init__(self, model):
            self.model = model

            def step(parameter):
                assert self.model is not None

            self.handles = [parameter.register_post_accumulate_grad_hook(step) for parameter in model.parameters()]

    @pytest.mark.parametrize("number", range(2))
    def test_kept(number):
        Optimizer(torch.nn.Linear(2, 2))

    def test_removed():
        for handle in Optimizer(torch.nn.Linear(2, 2)).handles:
            handle.remove()
"""


def test_a_hook_after_accumulation_that_leads_to_its_parameter_is_a_ring(run: Runner) -> None:
    found = run(HOOKS)
    kept = [f"test_kept[{number}]" for number in range(2)]
    assert {name: found.verdicts[name] for name in kept} == dict.fromkeys(kept, "leaked")
    assert found.verdicts["test_removed"] in ("clean", "noted")  # a cycle that the collector frees
    for name in kept:
        finding = found.finding(name)
        assert finding["kind"] == "growing"
        assert finding["holder"]["root"] == "a cycle through C++ that no collector frees"
        assert "._post_accumulate_grad_hooks[" in finding["holder"]["text"]
        assert "handle.remove()" in finding["hint"]


# As a table does whose cells refer to the table.
CELLS = """
    import numpy, torch

    class Table:
        pass

    def test_it():
        table = Table()
        table.cells = numpy.empty(2, object)
        table.cells[:] = torch.ones(1000), table
"""


def test_what_a_cell_leads_back_to_is_shown_as_a_cycle(run: Runner) -> None:
    pytest.importorskip("numpy")
    found = run(CELLS)
    finding = found.finding("test_it")
    assert (found.verdicts["test_it"], finding["kind"]) == ("leaked", "growing")
    assert finding["holder"]["text"] == ("a cycle through C++ that no collector frees -> numpy.ndarray[1].cells[0]")
    assert finding["code"] == "GL812"
    assert "leads back to itself through an item" in finding["hint"]

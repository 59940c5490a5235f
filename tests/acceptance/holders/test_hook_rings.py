"""Hooks of parameters that refer to what owns the parameter: cycles that torch's collector support does not see."""

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

    @pytest.mark.parametrize("number", range(3))
    def test_kept(number):
        Optimizer(torch.nn.Linear(2, 2))

    def test_removed():
        for handle in Optimizer(torch.nn.Linear(2, 2)).handles:
            handle.remove()
"""


def test_a_hook_after_accumulation_that_leads_to_its_parameter_is_a_ring(run: Runner) -> None:
    found = run(HOOKS)
    kept = [f"test_kept[{number}]" for number in range(3)]
    assert {name: found.verdicts[name] for name in kept} == dict.fromkeys(kept, "leaked")
    assert found.verdicts["test_removed"] in ("clean", "noted")  # a cycle that the collector frees
    for name in kept:
        finding = found.finding(name)
        assert finding["kind"] == "growing"
        assert finding["holder"]["root"] == "a cycle through C++ that no collector frees"
        assert "._post_accumulate_grad_hooks[" in finding["holder"]["text"]
        assert "handle.remove()" in finding["hint"]

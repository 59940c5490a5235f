"""What the test's runner alone holds, through torch's C++ code too: views, graphs, saved tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.confirm.test_harness import COUNTED, HOLDS_THE_INSTANCE, frames_alone, runs

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [pytest.mark.torch, frames_alone, pytest.mark.usefixtures("forked")]


@pytest.mark.parametrize(
    "keep",
    [
        "weight[0]",
        "[weight[0], weight[1], weight.view(-1)]",
        "(weight * weight).sum()",
        "torch.distributions.Normal(weight[0], torch.ones(1))",
    ],
)
def test_views_and_graphs_of_a_leaf_are_accounted_for(run: Runner, pytester: pytest.Pytester, keep: str) -> None:
    pytest.importorskip("torch")
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + HOLDS_THE_INSTANCE)
    found = run(
        f"""{COUNTED}
    import torch

    STORE = {{}}

    class TestIt(unittest.TestCase):
        def setUp(self):
            STORE.clear()

        def test_held(self):
            note("held")
            weight = torch.ones(2, 1).requires_grad_()
            self.value = {keep}

        def test_replaced(self):
            note("replaced")
            weight = STORE["weight"] = torch.ones(2, 1).requires_grad_()
            self.value = {keep}
    """
    )
    assert found.verdicts == {"TestIt::test_held": "clean", "TestIt::test_replaced": "noted"}
    assert runs(pytester) == {"held": 1, "replaced": 2}
    assert {one["kind"] for one in found.tests["TestIt::test_replaced"]["findings"]} == {"retained"}

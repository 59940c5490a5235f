"""What the test's runner alone holds, through torch's C++ code too: views, graphs, saved tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.confirm.test_harness import COUNTED, HOLDS_THE_INSTANCE, frames_alone, runs

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [pytest.mark.torch, frames_alone]

KEPT = {
    "View": "weight[0]",
    "Views": "[weight[0], weight[1], weight.view(-1)]",
    "Graph": "(weight * weight).sum()",
    "Distribution": "torch.distributions.Normal(weight[0], torch.ones(1))",
}


def test_views_and_graphs_of_a_leaf_are_accounted_for(run: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + HOLDS_THE_INSTANCE)
    classes = "".join(
        f"""
    class Test{name}(unittest.TestCase):
        STORE = {{}}

        def setUp(self):
            self.STORE.clear()

        def test_held(self):
            note("{name} held")
            weight = torch.ones(2, 1).requires_grad_()
            self.value = {keep}

        def test_replaced(self):
            note("{name} replaced")
            weight = self.STORE["weight"] = torch.ones(2, 1).requires_grad_()
            self.value = {keep}
    """
        for name, keep in KEPT.items()
    )
    found = run(f"{COUNTED}\n    import torch\n{classes}")
    wanted = (("held", "clean"), ("replaced", "noted"))
    assert found.verdicts == {f"Test{name}::test_{test}": verdict for name in KEPT for test, verdict in wanted}
    assert runs(pytester) == {
        f"{name} {test}": count for name in KEPT for test, count in (("held", 1), ("replaced", 2))
    }
    for name in KEPT:
        assert {one["kind"] for one in found.tests[f"Test{name}::test_replaced"]["findings"]} == {"retained"}

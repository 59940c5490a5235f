"""A captured layer: its streams' workspaces are freed while a stream still uses them, and requested bytes lag behind."""

import pytest
import torch


def test_warm():
    torch.nn.Linear(8, 8, device="cuda")(torch.ones(4, 8, device="cuda")).sum().backward()


@pytest.mark.filterwarnings("ignore")
def test_graphed_callable():
    sample = torch.randn(4, 32, device="cuda", requires_grad=True)
    layer = torch.cuda.make_graphed_callables(torch.nn.Linear(32, 32, device="cuda"), (sample,))
    layer(torch.randn(4, 32, device="cuda", requires_grad=True)).sum().backward()


def test_clean():
    torch.ones(3, device="cuda")

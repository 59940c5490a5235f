"""An inner loop of meta-learning on a model that reports its gradients through backward hooks.

https://github.com/facebookresearch/higher/issues/75
"""

import higher
import torch
from torch import nn


def test_backward_hooks_see_the_gradients_of_the_inner_loop():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []

    with higher.innerloop_ctx(model, optimizer) as (fmodel, diffopt):
        for module in fmodel.modules():
            if isinstance(module, nn.Linear):
                module.register_full_backward_hook(lambda _, __, grads: norms.append(grads[0].norm().item()))
        inputs, labels = torch.randn(4, 8), torch.randint(0, 2, (4,))
        loss = nn.functional.cross_entropy(fmodel(inputs), labels)
        diffopt.step(loss)

    assert len(norms) == 2

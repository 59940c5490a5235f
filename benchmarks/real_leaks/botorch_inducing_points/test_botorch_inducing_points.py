"""A variational GP whose inducing points are chosen by greedy variance reduction, which is the default.

https://github.com/meta-pytorch/botorch/issues/1788
"""

import torch
from botorch.models import SingleTaskVariationalGP


def test_a_variational_gp_takes_as_many_inducing_points_as_asked_for():
    torch.manual_seed(0)
    train_x = torch.rand(200, 3)
    train_y = torch.sin(train_x).sum(dim=-1, keepdim=True)

    model = SingleTaskVariationalGP(train_x, train_y, inducing_points=16)

    assert model.model.variational_strategy.inducing_points.shape == (16, 3)

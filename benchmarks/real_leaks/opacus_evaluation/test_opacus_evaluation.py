"""A network prepared for private training is measured without gradients, before and after it trains.

https://github.com/meta-pytorch/opacus/issues/176
"""

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn


@pytest.fixture(scope="module")
def training():
    """A small network and its optimizer with a privacy engine attached, shared by the module's tests."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = PrivacyEngine(
        model, batch_size=64, sample_size=64, alphas=[2, 10], noise_multiplier=1.0, max_grad_norm=1.0
    )
    engine.attach(optimizer)
    return model, optimizer


def loss_of(model, inputs, labels):
    """Cross entropy of the model on one batch."""
    return nn.functional.cross_entropy(model(inputs), labels)


def test_the_loss_is_finite_before_training(training):
    model, _ = training
    with torch.no_grad():
        losses = [loss_of(model, torch.randn(64, 16), torch.randint(0, 2, (64,))) for _ in range(4)]
    assert torch.stack(losses).isfinite().all()


def test_a_private_step_moves_the_parameters(training):
    model, optimizer = training
    before = model[0].weight.detach().clone()

    loss_of(model, torch.randn(64, 16), torch.randint(0, 2, (64,))).backward()
    optimizer.step()

    assert not torch.equal(model[0].weight, before)

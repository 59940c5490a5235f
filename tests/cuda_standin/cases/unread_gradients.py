"""A leaked layer whose gradients no Python code has read, while a fixture has such gradients too."""

import pytest
import torch

KEPT = []


@pytest.fixture(scope="module")
def model():
    return torch.nn.Linear(64, 64, device="cuda")


def test_fixture(model):
    model(torch.ones(4, 64, device="cuda")).sum().backward()


def test_unread_gradients():
    layer = torch.nn.Linear(256, 256, device="cuda")
    layer(torch.ones(4, 256, device="cuda")).sum().backward()
    KEPT.append(layer)


def test_fixture_again(model):
    assert model.weight.grad is not None

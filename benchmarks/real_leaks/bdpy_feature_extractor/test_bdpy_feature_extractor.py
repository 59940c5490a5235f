"""Features of an encoder that a module's tests share, through an extractor that each test makes for itself.

https://github.com/KamitaniLab/bdpy/issues/72
"""

import pytest
import torch
from bdpy.dl.torch import FeatureExtractor
from torch import nn


@pytest.fixture(scope="module")
def encoder():
    """A small convolutional network."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))


def test_an_extractor_returns_the_layers_it_was_asked_for(encoder):
    extractor = FeatureExtractor(encoder, ["[0]", "[2]"], detach=False)

    features = extractor.run(torch.randn(1, 3, 32, 32))

    assert features["[0]"].shape == (1, 8, 32, 32)
    assert features["[2]"].shape == (1, 4, 32, 32)


def test_the_encoder_itself_keeps_the_size_of_an_image(encoder):
    assert encoder(torch.randn(1, 3, 32, 32)).shape[-2:] == (32, 32)

"""Every closure that beartype decorates stays a key of one of its caches, with all that it closes over.

https://github.com/beartype/beartype/issues/673, https://github.com/beartype/beartype/issues/679
"""

import torch
from beartype import beartype


def make_normaliser(samples: torch.Tensor):
    mean, deviation = samples.mean(dim=0), samples.std(dim=0)

    @beartype
    def normalise(batch: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
        return (batch - mean) / (deviation + epsilon)

    return normalise


def test_normalised_samples_have_zero_mean():
    samples = torch.arange(4096.0).reshape(64, 64)
    normalise = make_normaliser(samples)
    assert torch.allclose(normalise(samples).mean(dim=0), torch.zeros(64), atol=1e-5)

"""Mean and variance of a fully Bayesian GP's mixture of posteriors.

https://github.com/meta-pytorch/botorch/pull/1650
"""

import torch
from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP


def test_the_mixture_of_posteriors_averages_over_the_samples():
    torch.manual_seed(0)
    train_x = torch.rand(20, 3, dtype=torch.double)
    train_y = torch.sin(train_x[:, :1])
    model = SaasFullyBayesianSingleTaskGP(train_x, train_y)
    samples = 4
    model.load_mcmc_samples(
        {
            "lengthscale": torch.rand(samples, 1, 3, dtype=torch.double) + 0.1,
            "outputscale": torch.rand(samples, dtype=torch.double) + 0.1,
            "mean": torch.randn(samples, dtype=torch.double),
            "noise": torch.rand(samples, 1, dtype=torch.double) + 0.1,
        }
    )
    model.eval()

    posterior = model.posterior(torch.rand(7, 3, dtype=torch.double))

    assert posterior.mixture_mean.shape == (7, 1)
    assert (posterior.mixture_variance > 0).all()

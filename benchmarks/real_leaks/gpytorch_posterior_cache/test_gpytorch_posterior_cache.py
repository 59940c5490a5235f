"""An exact GP's posterior, evaluated with gradients through its caches.

https://github.com/cornellius-gp/gpytorch/issues/2631
"""

import gpytorch
import torch


class ExactGP(gpytorch.models.ExactGP):
    """The regression model of gpytorch's tutorial."""

    def __init__(self, train_x, train_y, likelihood):
        super().__init__(train_x, train_y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_posterior_is_differentiable_in_the_test_points():
    torch.manual_seed(0)
    train_x = torch.linspace(0, 1, 100)
    train_y = torch.sin(6 * train_x) + 0.1 * torch.randn(100)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = ExactGP(train_x, train_y, likelihood)
    model.eval()
    likelihood.eval()

    test_x = torch.linspace(0, 1, 20).requires_grad_()
    with gpytorch.settings.detach_test_caches(False):
        posterior = likelihood(model(test_x))

    (slope,) = torch.autograd.grad(posterior.mean.sum(), test_x)
    assert slope.shape == test_x.shape

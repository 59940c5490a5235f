"""A mixture model whose discrete assignments are summed out by TraceEnum_ELBO.

https://github.com/pyro-ppl/pyro/issues/3068
"""

from unittest import mock

import torch

with mock.patch.object(torch, "__version__", "1.13.1"):  # pyro 1.8 asserts torch 1 as it is imported, and runs on 2
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, TraceEnum_ELBO, config_enumerate


@config_enumerate
def mixture(data):
    """Two Gaussians of a common width; which one a point comes from is enumerated."""
    weights = pyro.param("weights", torch.tensor([0.5, 0.5]), constraint=dist.constraints.simplex)
    locs = pyro.param("locs", torch.tensor([-1.0, 1.0]))
    with pyro.plate("data", len(data)):
        assignment = pyro.sample("assignment", dist.Categorical(weights))
        pyro.sample("obs", dist.Normal(locs[assignment], 1.0), obs=data)


def guide(data):
    """Nothing to infer but the parameters."""


def test_svi_improves_a_mixture_of_two_gaussians():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    data = torch.tensor([-3.1, -2.9, -3.0, 2.8, 3.0, 3.2])
    svi = SVI(mixture, guide, pyro.optim.Adam({"lr": 0.1}), loss=TraceEnum_ELBO(max_plate_nesting=1))

    losses = [svi.step(data) for _ in range(20)]

    assert losses[-1] < losses[0]
    pyro.clear_param_store()

"""Each function that jaxtyping checks is part of two reference cycles, and keeps what it closes over until a collection.

https://github.com/patrick-kidger/jaxtyping/issues/258
"""

import torch
from jaxtyping import Float, jaxtyped
from typeguard import typechecked

Points = Float[torch.Tensor, "count dimension"]  # a shape, not a type


def make_projection(basis: torch.Tensor):
    @jaxtyped(typechecker=typechecked)
    def project(points: Points) -> torch.Tensor:
        return points @ basis

    return project


def test_projection_keeps_the_first_coordinates():
    project = make_projection(torch.eye(256, 16))
    points = torch.arange(2560.0).reshape(10, 256)
    assert torch.equal(project(points), points[:, :16])

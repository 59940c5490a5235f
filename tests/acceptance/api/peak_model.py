"""A model whose evaluation keeps what no backward pass uses. Imported by `test_explaining_peak`."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn


class Net(nn.Module):  # type: ignore[misc] # torch is Any
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 2048)
        self.body = nn.Sequential(*[nn.Tanh() for _ in range(4)])

    def forward(self, x: Any) -> Any:
        return self.body(self.first(x))


LINES: Final = {"forward": Net.forward.__code__.co_firstlineno + 1, "first": Net.__init__.__code__.co_firstlineno + 2}


def evaluate(batch: int) -> None:
    net = Net().eval()
    assert net(torch.zeros(batch, 64)).shape == (batch, 2048)

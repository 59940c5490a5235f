"""What recording a peak costs: CPU time of training steps plain and under the recorder, and of the recorder's start.

    python benchmarks/peak_cost.py

In one process and one thread. Plain and recorded rounds take turns, and the least of each are compared: what else runs on the
machine takes caches and turns from a round, and gives none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import torch

from pytest_gpuleak.adapters.registry import own_frameworks

if TYPE_CHECKING:
    from collections.abc import Callable

nn = torch.nn
ROUNDS = 30
ROUND_S = 0.005
"""CPU seconds that a plain round takes at the least: short, so that few are disturbed."""

START = """
import sys, time, torch
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()
before = set(sys.modules)
from pytest_gpuleak.adapters.registry import own_frameworks
frameworks = own_frameworks()
begin = time.process_time()
with frameworks.peak_recorder(lambda file: True):
    began = time.process_time()
    pass
print(began - begin)
with frameworks.peak_recorder(lambda file: True):
    pass
print(time.process_time() - began)
"""


def perceptron(width: int, rows: int) -> tuple[nn.Module, torch.Tensor]:
    """Return a network of two layers and its input."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)), torch.ones(rows, width)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """Return an encoder's layer and its input."""
    return nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), torch.ones(4, 16, 32)


def convolutional() -> tuple[nn.Module, torch.Tensor]:
    """Return a network of convolutions and its input."""
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten()]
    return nn.Sequential(*layers), torch.ones(4, 3, 32, 32)


NETS = {
    "tiny perceptron": lambda: perceptron(16, 8),
    "tiny transformer": transformer,
    "small convolutions": convolutional,
    "perceptron of 1024": lambda: perceptron(1024, 64),
    "perceptron of 2048": lambda: perceptron(2048, 256),
}


def training(make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> Callable[[], None]:
    """Return a training step."""
    net, x = make()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return step


def seconds_of(step: Callable[[], None], steps: int) -> float:
    """Return the CPU time of a step."""
    begin = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - begin) / steps


def main() -> None:
    """Print a line for each network, and the start."""
    torch.set_num_threads(1)
    frameworks = own_frameworks()
    for name, make in NETS.items():
        step = training(make)
        step()
        steps = 1 + int(ROUND_S / seconds_of(step, 1 + int(ROUND_S / seconds_of(step, 1))))
        plain, recorded = [], []
        for _ in range(ROUNDS):
            plain.append(seconds_of(step, steps))
            with frameworks.peak_recorder(lambda file: file == __file__):
                recorded.append(seconds_of(step, steps))
        before, after = min(plain), min(recorded)
        print(f"{name}: {before * 1e3:.2f} ms a step, {after * 1e3:.2f} recorded: {after / before:.2f}")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    starts = [
        subprocess.check_output([sys.executable, "-c", START], env=environment, text=True).split() for _ in range(5)
    ]
    first, again = (min(map(float, figures)) * 1e3 for figures in zip(*starts, strict=True))
    print(f"start: {first:.0f} ms of CPU for the first, {again:.0f} for another, with its end")


if __name__ == "__main__":
    main()

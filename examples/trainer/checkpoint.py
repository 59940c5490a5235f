from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the state so that a reader never finds half a file."""
    unfinished = path.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    unfinished.replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    state = torch.load(path, map_location=next(model.parameters()).device, weights_only=True)
    model.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trainer.data import Dataset, spirals
from trainer.device import default_device
from trainer.model import Classifier
from trainer.retrieval import EmbeddingIndex

ARMS = 3


@pytest.fixture(scope="session")
def device() -> torch.device:
    return default_device()


@pytest.fixture(scope="session")
def data(device: torch.device) -> Dataset:
    return spirals(512, ARMS, device)


@pytest.fixture
def model(device: torch.device) -> Classifier:
    torch.manual_seed(0)
    return Classifier(ARMS, device=device)


@pytest.fixture(scope="module")
def index(device: torch.device) -> Iterator[EmbeddingIndex]:
    vectors = torch.randn(20_000, 64, generator=torch.Generator().manual_seed(0))
    index = EmbeddingIndex("points", vectors.to(device))
    yield index
    index.close()

from __future__ import annotations

import pytest
import torch

from trainer.retrieval import EmbeddingIndex


@pytest.mark.parametrize("row", [0, 7, 19_999])
def test_a_vector_is_nearest_to_itself(index: EmbeddingIndex, row: int) -> None:
    assert index.nearest(index.vectors[row : row + 1], 1).item() == row


def test_an_open_index_is_found_by_name(index: EmbeddingIndex, device: torch.device) -> None:
    assert EmbeddingIndex.find("points", device) is index
    assert EmbeddingIndex.find("faces", device) is None

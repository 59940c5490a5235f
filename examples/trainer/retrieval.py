from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor


class EmbeddingIndex:
    """Nearest neighbours by cosine similarity. Open indexes are found by name, so that workers can share them."""

    _open: ClassVar[dict[tuple[str, str], EmbeddingIndex]] = {}

    def __init__(self, name: str, vectors: Tensor) -> None:
        self.name = name
        self.vectors = torch.nn.functional.normalize(vectors.detach(), dim=1)
        self._open[name, vectors.device.type] = self

    @classmethod
    def find(cls, name: str, device: torch.device) -> EmbeddingIndex | None:
        return cls._open.get((name, device.type))

    def nearest(self, queries: Tensor, count: int) -> Tensor:
        """The rows of the `count` vectors most similar to each query, best first."""
        similarity = torch.nn.functional.normalize(queries, dim=1) @ self.vectors.T
        return similarity.topk(count, dim=1).indices

    def close(self) -> None:
        self._open.pop(self.name, None)

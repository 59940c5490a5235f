from __future__ import annotations

from typing import ClassVar

import tensorflow as tf


class NeighbourIndex:
    """Finds the points that are closest to a point."""

    _open: ClassVar[dict[str, NeighbourIndex]] = {}

    def __init__(self, name: str, points: tf.Tensor) -> None:
        self.name = name
        self.points = tf.Variable(points)
        self._open[name] = self

    def nearest(self, point: tf.Tensor) -> int:
        distances = tf.reduce_sum((self.points - point) ** 2, axis=1)
        return int(tf.argmin(distances))

    def close(self) -> None:
        self.name = ""

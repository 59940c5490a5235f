from __future__ import annotations

import tensorflow as tf

from spirals.search import NeighbourIndex


def test_a_point_is_its_own_neighbour(index: NeighbourIndex) -> None:
    assert index.nearest(index.points[7]) == 7


def test_a_point_far_away_has_a_neighbour(index: NeighbourIndex) -> None:
    assert 0 <= index.nearest(tf.constant([9.0, 9.0])) < 200_000

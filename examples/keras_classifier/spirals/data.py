from __future__ import annotations

import numpy as np
import tensorflow as tf


def spirals(count: int, arms: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    label = generator.integers(0, arms, count)
    radius = generator.random(count)
    angle = radius * 4 + label * 2 * np.pi / arms
    points = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1)
    return points.astype("float32"), label


def batches(points: np.ndarray, labels: np.ndarray, size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((points, labels)).batch(size)

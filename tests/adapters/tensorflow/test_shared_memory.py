"""Memory that TensorFlow shares with torch and NumPy is counted once."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

MIB = 2**20

SUITE = """
    import numpy as np
    import tensorflow as tf
    import torch

    BOTH, TENSORS, VIEWS, APART = [], [], [], []

    def make():
        return tf.ones((512, 512)) * 2

    def lend(tensor):
        return torch.from_dlpack(tf.experimental.dlpack.to_dlpack(tensor))

    def test_both():
        tensor = make()
        BOTH.append((tensor, lend(tensor)))

    def test_borrowed_by_tensorflow():
        tensor = torch.ones(512, 512)
        BOTH.append((tensor, tf.experimental.dlpack.from_dlpack(tensor.__dlpack__())))

    def test_lent_alone():
        TENSORS.append(lend(make()))

    def test_view_of_numpy():
        tensor = make()
        VIEWS.append((tensor, np.asarray(memoryview(tensor))))

    def test_apart():
        APART.append((make(), torch.ones(512, 512)))

    def test_clean():
        lend(make())
"""


@pytest.mark.skipif(find_spec("torch") is None or find_spec("tensorflow") is None, reason="needs torch and TensorFlow")
def test_memory_shared_with_torch_is_counted_once(run: Runner) -> None:
    found = run(SUITE, apart=True)
    assert found.verdicts["test_clean"] == "clean"
    leaked = found.verdicts.keys() - {"test_clean"}
    sizes = {name: (found.finding(name)["count"], found.finding(name)["bytes"]) for name in leaked}
    assert sizes == {name: (2, 2 * MIB) if name == "test_apart" else (1, MIB) for name in leaked}
    assert {name: len(found.tests[name]["findings"]) for name in leaked} == dict.fromkeys(leaked, 1)

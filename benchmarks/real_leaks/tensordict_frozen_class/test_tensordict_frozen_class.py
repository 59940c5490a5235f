"""Each instance of a frozen tensor class is part of a reference cycle, and keeps its tensors until a collection.

https://github.com/pytorch/tensordict/issues/1187
"""

import torch
from tensordict import TensorDict, tensorclass


@tensorclass(frozen=True)
class Episode:
    frames: TensorDict


def test_episode_keeps_its_observations():
    frames = TensorDict({"observation": torch.zeros(64, 128)}, batch_size=[64])
    episode = Episode(frames=frames, batch_size=[64])
    assert episode.frames["observation"].shape == (64, 128)

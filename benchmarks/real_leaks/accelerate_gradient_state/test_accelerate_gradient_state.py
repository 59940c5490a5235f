"""A data loader left half way stays in accelerate's gradient state, with its data set.

https://github.com/huggingface/accelerate/issues/2234, https://github.com/huggingface/accelerate/pull/3391
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def test_training_stops_when_the_loss_is_low_enough():
    accelerator = Accelerator(cpu=True)
    features = torch.linspace(-1.0, 1.0, 4096).reshape(512, 8)
    targets = features.sum(dim=1, keepdim=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(features, targets), batch_size=64)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    steps = 0
    for inputs, wanted in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps == 3:
            break

    accelerator.free_memory()
    assert steps == 3

"""torchinfo keeps the layers of the last summary of each class of model, whether or not it was asked to cache.

https://github.com/TylerYep/torchinfo/issues/369
"""

import torch
from torchinfo import summary


class Classifier(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))

    def forward(self, inputs):
        return self.body(inputs)


def test_summary_counts_the_parameters():
    model = Classifier(512)
    statistics = summary(model, input_size=(4, 512), verbose=0)
    assert statistics.total_params == 512 * 512 + 512 + 512 * 10 + 10

"""A model that is adapted with ShiRA and run once.

https://github.com/huggingface/peft
"""

import torch
from peft import ShiraConfig, get_peft_model


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 4)

    def forward(self, inputs):
        return self.head(torch.relu(self.hidden(inputs)))


def test_an_adapted_model_classifies():
    model = get_peft_model(Classifier(), ShiraConfig(r=2, target_modules=["hidden"]))
    assert model(torch.ones(3, 64)).shape == (3, 4)

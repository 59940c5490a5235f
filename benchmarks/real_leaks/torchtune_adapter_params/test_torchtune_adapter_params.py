"""A cached function has each model it was called with as a key, and the model's parameters as the value.

https://github.com/meta-pytorch/torchtune/issues/904
"""

import torch
from torch._inductor.runtime import runtime_utils

# torchao 0.3.1, which torchtune imports, asks for a name that torch has moved since; nothing here calls it.
runtime_utils.do_bench = None

from torchtune.modules.peft import LoRALinear  # noqa: E402
from torchtune.modules.peft.peft_utils import get_adapter_params, set_trainable_params  # noqa: E402


class Scorer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = LoRALinear(in_dim=64, out_dim=64, rank=4, alpha=8.0)
        self.head = torch.nn.Linear(64, 1)

    def forward(self, inputs):
        return self.head(self.projection(inputs))


def test_only_the_adapter_is_trained():
    scorer = Scorer()
    set_trainable_params(scorer, get_adapter_params(scorer))
    trained = [name for name, parameter in scorer.named_parameters() if parameter.requires_grad]
    assert trained == ["projection.lora_a.weight", "projection.lora_b.weight"]

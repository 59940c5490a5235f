"""Every spiking neuron is appended to a list of its class, and never leaves it.

https://github.com/jeshraghian/snntorch/issues/328
"""

import snntorch
import torch


class SpikingNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(32, 64)
        self.neuron = snntorch.Leaky(beta=0.9, init_hidden=True)

    def forward(self, inputs):
        return self.neuron(self.hidden(inputs))


def test_spikes_are_zeros_and_ones():
    net = SpikingNet()
    for _ in range(5):
        spikes = net(torch.ones(16, 32))
    assert spikes.shape == (16, 64)
    assert set(spikes.unique().tolist()) <= {0.0, 1.0}

"""A function of a library for spectrograms, traced for deployment.

https://github.com/asteroid-team/asteroid-filterbanks
"""

import torch
from asteroid_filterbanks import transforms


def test_the_traced_magnitude_is_the_magnitude():
    spectrogram = torch.ones(2, 66, 10)
    traced = torch.jit.trace(transforms.mag, spectrogram)
    assert traced(spectrogram).equal(transforms.mag(spectrogram))

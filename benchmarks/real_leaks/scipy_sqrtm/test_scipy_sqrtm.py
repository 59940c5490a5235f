"""The square root of a matrix leaves a work array behind.

https://github.com/scipy/scipy/issues/23429
"""

import numpy as np
from scipy.linalg import sqrtm


def test_root_of_a_diagonal_matrix():
    diagonal = np.arange(1.0, 701.0)
    root = sqrtm(np.diag(diagonal))
    assert np.allclose(np.diag(root) ** 2, diagonal)

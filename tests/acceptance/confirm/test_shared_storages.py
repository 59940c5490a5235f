"""Arrays that use the memory of another: the memory lives on when they are gone, and that is no growth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.torch

# As captum's LRP does: each run replaces what the last one kept, of which one is an alias of the test's own input.
REPLACED = """
    import pytest, torch

    INPUT = torch.ones(4, 3)

    class Layer:
        pass

    LAYER = Layer()

    @pytest.mark.parametrize("number", range(3))
    def test_it(number):
        LAYER.activations = {torch.device("cpu"): (INPUT.data, torch.ones(4, 3))}
"""


def test_an_alias_that_each_run_replaces_does_not_grow(run: Runner) -> None:
    found = run(REPLACED)
    for number in range(3):
        name = f"test_it[{number}]"
        assert (found.verdicts[name], found.finding(name)["kind"]) == ("noted", "retained")

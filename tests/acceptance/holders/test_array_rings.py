"""NumPy arrays of objects, which the collector does not see into: what holds itself through one is never freed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.torch

# As a table does whose cells refer to the table.
CELLS = """
    import numpy, torch

    class Table:
        pass

    def test_it():
        table = Table()
        table.cells = numpy.empty(2, object)
        table.cells[:] = torch.ones(1000), table
"""


def test_what_a_cell_leads_back_to_is_shown_as_a_cycle(run: Runner) -> None:
    pytest.importorskip("numpy")
    found = run(CELLS)
    finding = found.finding("test_it")
    assert (found.verdicts["test_it"], finding["kind"]) == ("leaked", "growing")
    assert finding["holder"]["text"] == ("a cycle through C++ that no collector frees -> numpy.ndarray[1].cells[0]")
    assert finding["code"] == "GL812"
    assert "leads back to itself through an item" in finding["hint"]

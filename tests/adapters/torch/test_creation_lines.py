"""The lines that create torch tensors, by the storages' addresses, which are used again."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuleak.adapters.torch.creation_lines import trace_origins
from pytest_gpuleak.adapters.torch.reading import storage_key

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch")


def test_what_no_call_returned_has_no_line_of_an_earlier_storage_at_its_address() -> None:
    """What C++ makes for itself, such as TorchScript's constants, reuses the memory of what Python has let go."""
    with trace_origins(torch, lambda path: path == __file__) as lines:
        gone = [torch.ones(3) for _ in range(5000)]
        kept = torch.zeros(3)
        gone.clear()
        with torch._C.DisableTorchFunction():
            unseen = [torch.ones(3) for _ in range(5000)]
    assert not [one for one in unseen if storage_key(torch, one) in lines]
    assert lines[storage_key(torch, kept)].code == "kept = torch.zeros(3)"
    assert list(lines) == [storage_key(torch, kept)]


def test_storages_that_are_gone_are_let_go_during_a_long_run() -> None:
    """Else each storage that a re-run makes would take 100 bytes until its end."""
    with trace_origins(torch, lambda path: path == __file__) as lines:
        for _ in range(5000):
            torch.ones(3)
        assert 0 < len(lines) < 5000


def test_a_storage_keeps_the_line_that_made_it() -> None:
    with trace_origins(torch, lambda path: path == __file__) as lines:
        made = torch.zeros(2, 3)
        view = made.view(3, 2)
        view.add_(1)
        parts = torch.ones(4).split(2)
        model = torch.nn.Linear(3, 1)
        model(view.T).sum().backward()
        gradient = model.weight.grad
    assert lines[storage_key(torch, made)].code == "made = torch.zeros(2, 3)"
    assert lines[storage_key(torch, parts[1])].code == "parts = torch.ones(4).split(2)"
    assert lines[storage_key(torch, model.weight)].code == "model = torch.nn.Linear(3, 1)"
    assert lines[storage_key(torch, gradient)].code == "model(view.T).sum().backward()"

"""Who lends arrays their memory is asked only where a run may have left it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuleak.engine import host_arrays
from pytest_gpuleak.engine.host_arrays import Lenders
from pytest_gpuleak.engine.limits import MOST_LENDER_SEARCHES


@pytest.mark.parametrize("may_have_added", [False, True])
def test_memory_is_borrowed_of_an_array_that_the_run_may_have_made(
    monkeypatch: pytest.MonkeyPatch, *, may_have_added: bool
) -> None:
    """What `torch.load` reads has the same marks: a leak of it took 0.46 s more, for a walk over the heap."""
    asked: list[object] = []

    def note(arrays: object, _: object) -> list[tuple[object, object]]:
        asked.append(arrays)
        return []

    monkeypatch.setattr(host_arrays, "memory_of_arrays", note)
    tracker = SimpleNamespace(may_have_added_arrays=may_have_added, frameworks=SimpleNamespace(arrays=[]))
    suspect: Any = SimpleNamespace(tracker=tracker, guard=nullcontext)
    Lenders(suspect).note_borrowed(["weight"])
    assert asked == ([["weight"]] if may_have_added else [])


def test_so_many_searches_are_made_in_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each walks the heap, and lenders are told beside the holder: they change no verdict."""
    searched: list[object] = []
    monkeypatch.setattr(Lenders, "_search", lambda _, places: searched.append(places))
    suspect: Any = SimpleNamespace(knowledge=SimpleNamespace(lender_searches=0), guard=nullcontext)
    reading = SimpleNamespace(storage=7)
    evidence: Any = SimpleNamespace(survivors=[SimpleNamespace(reading=reading)])
    for _ in range(MOST_LENDER_SEARCHES + 3):
        one = Lenders(suspect)
        one.find(evidence)  # borrows nothing
        one._borrowed[100] = 7
        one.find(evidence)
    assert searched == [{100: 7}] * MOST_LENDER_SEARCHES

"""Tests that leave thousands of arrays: the same verdicts as for a few."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import Runner


def test_all_are_counted_under_who_holds_them(run: Runner) -> None:
    found = run(
        """
        FIRST, SECOND = [], {}

        def test_it():
            FIRST.extend(Buffer(8) for _ in range(2500))
            SECOND.update((object(), Buffer(8)) for _ in range(1500))
        """
    )
    counts = {one["holder"]["root"]: (one["kind"], one["count"]) for one in found.tests["test_it"]["findings"]}
    assert counts == {"test_it.FIRST": ("growing", 2500), "test_it.SECOND": ("growing", 1500)}


def test_a_large_ring_in_which_a_few_are_replaced_does_not_grow(run: Runner) -> None:
    found = run(
        """
        import collections
        RING = collections.deque(maxlen=6000)

        def test_it():
            RING.extend(Buffer(8) for _ in range(100 if RING else 6000))
        """
    )
    (finding,) = found.tests["test_it"]["findings"]
    assert (finding["kind"], finding["count"]) == ("retained", 6000)
    assert found.verdicts == {"test_it": "noted"}

"""Every limit of the engine, with its unit and its reason, and whether it stops, orders or bounds.

None of them chooses a verdict: what a limit cuts off excuses (docs/how-it-works.md, the table of limits).
"""

from __future__ import annotations

from typing import Final

LEAST_NETTED: Final = 16 * 1024
"""Bytes of an older array from which a run is credited with letting it go. Bounds: 1/64 of the default `retained_mb`, so
that what is not followed cannot tip a verdict by much, and a model's biases cost no clean test anything."""

MOST_OLDER: Final = 100_000
"""Older arrays that are followed while a suspect is run again. Bounds: a weak handle takes 100 bytes and 0.1 us to ask."""

MOST_WAITING: Final = 200
"""Tests whose findings wait before their holders are searched for together. Orders: it bounds the memory they take."""

MOST_ARRAYS_WAITING: Final = 20_000
"""Arrays that wait before their holders are searched for together. Orders."""

GRAPHS_STEPS: Final = 10_000_000
"""Steps (`heap.budget`) of counting what one test's autograd graphs retain: 100,000 nodes. Bounds: what is cut excuses."""

SEARCH_STEPS: Final = 80_000_000
"""Steps (`heap.budget`) of a search for holders: some 20 s. Bounds: what is not met is held by "unknown"."""

STEPS_A_TEST: Final = 1_000_000
"""Steps that each test adds to `SEARCH_STEPS`: most of one heap's search is shared, and the naming is not. Bounds."""

MOST_REACHED: Final = 1_000
"""Arrays for which lasting roots are looked for one by one. Bounds: of more, the heap is collected to tell garbage."""

"""What a test lets go of earlier tests' memory does not hide what it leaks: the host's counter tells only the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytest.importorskip("numpy")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cold")]


def test_arrays_that_the_collector_does_not_track(run: Runner) -> None:
    found = run(
        """
        import types
        import numpy as np
        import pytest

        TABLE = np.ones(2**19)
        CACHE, KEPT, PAIR = {}, [], [None]

        @pytest.fixture(scope="module")
        def holder():
            return types.SimpleNamespace(samples=np.ones(2**19))

        def test_fills_a_cache():
            CACHE["x"] = np.ones(2**19)

        def test_clears_the_cache_and_leaks():
            CACHE.clear()
            KEPT.append(np.ones(2**19))

        def test_drops_a_global_and_leaks():
            global TABLE
            TABLE = None
            KEPT.append(np.ones(2**19))

        def test_drops_what_a_fixture_made_and_leaks(holder):
            holder.samples = None
            KEPT.append(np.ones(2**19))

        def test_keeps():
            PAIR[0] = np.ones(2**19)

        def test_replaces():
            PAIR[0] = np.ones(2**19)

        def test_replaces_by_a_larger_one():
            PAIR[0] = np.ones(2**20)

        def test_lets_go_and_keeps_as_much():
            PAIR[0] = None
            CACHE["y"] = np.ones(2**19)

        def test_lets_leaks_go_and_keeps_more():  # of each leak there is thrice as much, for the re-runs: no credit
            KEPT.clear()
            CACHE["z"] = np.ones(2**21)

        def test_lets_go(holder):
            CACHE.clear()
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=10)
    growing = {
        "test_clears_the_cache_and_leaks",
        "test_drops_a_global_and_leaks",
        "test_drops_what_a_fixture_made_and_leaks",
    }
    leaked = growing | {
        "test_fills_a_cache",
        "test_keeps",
        "test_replaces_by_a_larger_one",
        "test_lets_leaks_go_and_keeps_more",
    }
    assert found.verdicts == {name: "leaked" if name in leaked else "clean" for name in found.tests}
    for name in growing:
        one = found.finding(name)
        assert (one["kind"], one["bytes_per_run"], one["holder"]["root"]) == ("growing", 2**22, "test_it.KEPT")


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_tensors(run: Runner) -> None:
    """Of what has no Python object, NumPy's arrays aside, a gradient that nobody has read is the most common."""
    found = run(
        """
        import numpy as np
        import torch

        CACHE, KEPT = {}, []

        def test_fills_a_cache():
            CACHE["x"] = torch.ones(2**20)

        def test_clears_the_cache_and_leaks_an_array():
            CACHE.clear()
            KEPT.append(np.ones(2**19))

        def test_fills_it_again():
            CACHE["x"] = torch.ones(2**20)

        def test_clears_the_cache_alone():
            CACHE.clear()
            weight = torch.ones(2**20, requires_grad=True)
            weight.sum().backward()
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=4)
    clean = "test_clears_the_cache_alone"
    assert found.verdicts == {name: "clean" if name == clean else "leaked" for name in found.tests}
    one = found.finding("test_clears_the_cache_and_leaks_an_array")
    assert (one["kind"], one["holder"]["root"]) == ("growing", "test_it.KEPT")

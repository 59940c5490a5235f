"""Growth of the heap in runs that leave no more NumPy arrays than there were: nearly always a first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.registry import untracked_array_counts

if TYPE_CHECKING:
    from tests.conftest import Runner

pytest.importorskip("numpy")

pytestmark = [
    pytest.mark.skipif("sys.platform != 'linux'", reason="reads malloc's heap"),
    pytest.mark.skipif(not untracked_array_counts(), reason="NumPy's dtypes are immortal in this interpreter"),
    pytest.mark.usefixtures("cold"),
]


def test_a_new_array_is_found_whatever_goes_meanwhile_and_of_any_dtype(run: Runner) -> None:
    found = run(
        """
        import time
        import numpy as np, pytest

        RECORD, KEPT = np.dtype([("weight", "f8"), ("count", "i4")]), []
        TABLE, OLDER, SLOT = np.ones(1), [np.ones(10) for _ in range(100)], {}

        @pytest.fixture(scope="class")
        def data():
            return [np.array([1.0] * 2**17)]

        def test_fills_the_place_of_an_empty_one_leaks():
            global TABLE
            if TABLE.size == 1:
                TABLE = np.ones(2**22)

        @pytest.mark.parametrize("dtype", [RECORD, "U8", "M8[s]", ">f4"])
        def test_not_of_numpys_own_leaks(dtype):
            KEPT.append(np.zeros(2**18, dtype))

        def test_the_first_run_lets_others_go_leaks():
            OLDER.clear()
            KEPT.append(np.ones(2**17))

        class TestWiderFixture:
            def test_uses(self, data):
                pass

            def test_with_which_it_goes_leaks(self):
                KEPT.append(np.array([1.0] * 2**17))

        def test_slow_leaks():
            time.sleep(0.3)
            KEPT.append(np.ones(2**18))

        def test_slow_of_many_leaks():
            time.sleep(0.3)
            KEPT.append([np.ones(128) for _ in range(2048)])

        def test_nothing():
            pass

        def test_replaces_through_a_cycle_leaks():
            node = [np.ones(2**21)]
            node.append(node)
            SLOT["node"] = node
        """,
        apart=True,
    )
    assert found.verdicts == {name: "leaked" if "leaks" in name else "clean" for name in found.tests}
    once = {name: one for name in found.tests for one in found.tests[name]["findings"] if one["kind"] == "retained"}
    assert {name: (one["holder"]["root"], one["bytes_per_run"]) for name, one in once.items()} == {
        "test_fills_the_place_of_an_empty_one_leaks": ("test_it.TABLE", 0),
        "test_replaces_through_a_cycle_leaks": ("test_it.SLOT", 0),
    }


def test_a_little_growth_with_a_new_array_is_always_checked_again(run: Runner) -> None:
    found = run(
        """
        import numpy as np, pytest

        RUNS, KEPT = [], []

        @pytest.mark.parametrize("number", range(16))
        def test_first_use(number):
            RUNS.append(number)
            if number not in RUNS[:-1]:
                KEPT.append(("x" * (300 * 2**10), [np.ones(1)]))

        def test_number_of_runs():
            assert len(RUNS) == 16 + 16
        """
    )
    found.result.assert_outcomes(passed=17)
    assert set(found.verdicts.values()) == {"clean"}

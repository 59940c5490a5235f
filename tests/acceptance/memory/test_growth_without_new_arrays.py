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


def test_a_large_array_that_takes_the_place_of_an_empty_one_is_found(run: Runner) -> None:
    found = run(
        """
        import numpy as np

        TABLE = np.ones(1)

        def test_fills():
            global TABLE
            if TABLE.size == 1:
                TABLE = np.ones(2**22)
        """,
        apart=True,
    )
    (finding,) = found.tests["test_fills"]["findings"]
    assert finding["kind"] == "retained"
    assert finding["holder"]["root"] == "test_it.TABLE"


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


@pytest.mark.parametrize("dtype", ["RECORD", "'U8'", "'M8[s]'", "'>f4'"])
def test_arrays_of_dtypes_that_are_not_of_numpys_own_are_found(run: Runner, dtype: str) -> None:
    found = run(
        f"""
        import numpy as np

        RECORD, KEPT = np.dtype([("weight", "f8"), ("count", "i4")]), []

        def test_keeps():
            KEPT.append(np.zeros(2**18, {dtype}))
        """
    )
    assert found.verdicts == {"test_keeps": "leaked"}


def test_arrays_that_the_first_run_lets_go_of_hide_no_new_one(run: Runner) -> None:
    found = run(
        """
        import numpy as np

        OLDER, KEPT = [np.ones(10) for _ in range(100)], []

        def test_keeps():
            OLDER.clear()
            KEPT.append(np.ones(2**17))
        """
    )
    assert found.verdicts == {"test_keeps": "leaked"}


def test_arrays_that_go_with_a_wider_fixture_hide_no_new_one(run: Runner) -> None:
    found = run(
        """
        import numpy as np, pytest

        KEPT = []

        @pytest.fixture(scope="module")
        def data():
            return [np.array([1.0] * 2**17)]

        def test_uses(data):
            pass

        def test_keeps():
            KEPT.append(np.array([1.0] * 2**17))
        """
    )
    assert found.verdicts == {"test_uses": "clean", "test_keeps": "leaked"}


@pytest.mark.parametrize("added", ["np.ones(2**18)", "[np.ones(128) for _ in range(2048)]"])
def test_a_slow_test_that_adds_arrays_is_run_again(run: Runner, added: str) -> None:
    found = run(
        f"""
        import time
        import numpy as np

        KEPT = []

        def test_array():
            time.sleep(0.3)
            KEPT.append({added})

        def test_nothing():
            pass
        """
    )
    assert found.verdicts == {"test_array": "leaked", "test_nothing": "clean"}


def test_an_array_that_is_replaced_through_a_cycle_does_not_grow(run: Runner) -> None:
    found = run(
        """
        import numpy as np

        SLOT = {}

        def test_replaces():
            node = [np.ones(2**21)]
            node.append(node)
            SLOT["node"] = node
        """,
        apart=True,
    )
    (finding,) = found.tests["test_replaces"]["findings"]
    assert (finding["kind"], finding["bytes_per_run"]) == ("retained", 0)

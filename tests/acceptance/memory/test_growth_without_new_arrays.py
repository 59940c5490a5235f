"""Growth of the heap in runs that leave no more NumPy arrays than there were: nearly always a first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.registry import untracked_array_counts
from pytest_gpuleak.engine import host_reruns
from pytest_gpuleak.engine.confirm.residue import Residue

if TYPE_CHECKING:
    from pytest_gpuleak.explain.untracked_arrays import HeapArrays
    from tests.conftest import Runner

pytest.importorskip("numpy")

pytestmark = [
    pytest.mark.skipif("sys.platform != 'linux'", reason="reads malloc's heap"),
    pytest.mark.skipif(not untracked_array_counts(), reason="NumPy's dtypes are immortal in this interpreter"),
]


def test_an_array_that_is_replaced_by_a_larger_one_grows(run: Runner) -> None:
    found = run(
        """
        import numpy as np

        class History:
            losses = np.ones(1)

        def test_appends():
            History.losses = np.concatenate([History.losses, np.ones(2**17)])
        """,
        apart=True,
    )
    (finding,) = found.tests["test_appends"]["findings"]
    assert finding["kind"] == "growing"
    assert finding["holder"]["root"] == "test_it.History.losses"


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


def test_a_slow_test_is_run_again_once_another_grows_alike(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_reruns, "SLOW_RERUN_S", 0.0)
    found = run(
        """
        import time
        import numpy

        KEPT, RUNS = [], []

        def grow(name, size):
            time.sleep(0.06)
            RUNS.append(name)
            KEPT.append(bytes(size))

        def test_first():
            grow("first", 2**24)

        def test_other():
            grow("other", 2**26)

        def test_alike():
            grow("alike", 2**24 + 2**20)

        def test_last():
            grow("last", 2**25)
        """
    )
    assert found.verdicts == {
        "test_first": "clean",
        "test_other": "clean",
        "test_alike": "leaked",
        "test_last": "leaked",  # no other test follows
    }


@pytest.mark.parametrize("added", ["np.ones(2**18)", "[np.ones(128) for _ in range(2048)]"])
def test_a_slow_test_that_adds_arrays_does_not_wait(run: Runner, monkeypatch: pytest.MonkeyPatch, added: str) -> None:
    monkeypatch.setattr(host_reruns, "SLOW_RERUN_S", 0.0)
    found = run(
        f"""
        import time
        import numpy as np

        KEPT = []

        def test_array():
            time.sleep(0.06)
            KEPT.append({added})

        def test_nothing():
            pass
        """
    )
    assert found.verdicts == {"test_array": "leaked", "test_nothing": "clean"}


def test_a_slow_test_whose_new_arrays_are_too_small_for_its_growth_waits(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_reruns, "SLOW_RERUN_S", 0.0)
    walked: list[bool] = []
    choose = Residue.choose

    def noted(self: Residue, heap: HeapArrays) -> tuple[list[object], dict[int, int] | None]:
        walked.append(True)
        return choose(self, heap)

    monkeypatch.setattr(Residue, "choose", noted)
    found = run(
        """
        import time
        import numpy as np

        KEPT = []

        def test_first_use():
            time.sleep(0.06)
            KEPT.append((bytes(2**24), np.ones(100)))

        def test_number_of_runs():
            assert len(KEPT) == 1
        """
    )
    found.result.assert_outcomes(passed=2)
    assert walked == [True]  # what it has not found is not looked for again


@pytest.mark.parametrize("leaves", ["", "cycle()"], ids=["", "and cycles"])
def test_re_runs_for_a_little_growth_are_in_vain_beside_cycles_too(
    run: Runner, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    """The young collection of the first run has told of the cycles: the re-runs were for the host's memory alone."""
    monkeypatch.setattr(host_reruns, "SMALL_SUM_S", 0.0)
    monkeypatch.setattr(host_reruns, "SMALL_SHARE", 0.0)
    found = run(
        f"""
        import numpy as np, pytest
        from tests.support.standin import Buffer

        RUNS, KEPT = [], []

        def cycle():
            node = [Buffer(64)]
            node.append(node)

        @pytest.mark.parametrize("number", range(6))
        def test_first_use(number):
            RUNS.append(number)
            if number not in RUNS[:-1]:
                KEPT.append(("x" * (300 * 2**10), [np.ones(1) for _ in range(20)]))
            {leaves}

        def test_number_of_runs():
            assert len(RUNS) == 6 + 1, RUNS
        """
    )
    found.result.assert_outcomes(passed=7)

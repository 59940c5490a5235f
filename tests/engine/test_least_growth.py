"""From which growth of the host's memory on a run is examined: it follows from what the run has made."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.frameworks import Frameworks
from pytest_gpuleak.adapters.protocol import Framework
from pytest_gpuleak.adapters.registry import may_have_untracked_arrays, own_frameworks, untracked_array_counts
from pytest_gpuleak.engine.run_tracker import RunTracker
from pytest_gpuleak.engine.stages import Unguarded
from pytest_gpuleak.model.policy import Policy
from tests.support.standin import StandInArrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

POLICY = Policy(host_bytes=1000, retained_bytes=100, array_bytes=10)


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture
def tracker() -> Iterator[RunTracker]:
    tracker = RunTracker(own_frameworks(), Unguarded())
    tracker.start(POLICY)
    yield tracker
    tracker.stop()


def test_a_run_that_has_made_nothing_is_examined_from_the_hosts_limit_on(tracker: RunTracker) -> None:
    if may_have_untracked_arrays() and not untracked_array_counts():
        pytest.skip("NumPy's dtypes are immortal in this interpreter")
    tracker.begin_run()
    assert tracker.least_host_growth(POLICY) == 1000


def test_where_the_first_run_decides_each_byte_counts(tracker: RunTracker) -> None:
    tracker.begin_run()
    assert tracker.least_host_growth(POLICY._replace(confirm=0)) == 0


def test_a_new_numpy_array_lowers_it(tracker: RunTracker) -> None:
    numpy = pytest.importorskip("numpy")
    tracker.begin_run()
    array = numpy.ones(3)
    assert tracker.least_host_growth(POLICY) == 10
    assert array.size == 3


def test_a_graph_lowers_it(tracker: RunTracker) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(3, requires_grad=True)
    torch._C._autograd._get_sequence_nr()  # what is looked up first may make arrays of NumPy's
    tracker.begin_run()
    loss = tensor.sum()
    assert tracker.least_host_growth(POLICY) <= 100
    assert tracker.may_have_made_gradients
    del loss


class Compiler(Framework):
    """Lists its programs, but does not count them."""

    name = "compiler"

    def __init__(self) -> None:
        self.arrays = StandInArrays()

    def program_names(self) -> Sequence[str]:
        return ()


class Counting(Compiler):
    """Counts them."""

    def program_count(self) -> int:
        return 0


class Broken(Counting):
    """Is imported in part."""

    def node_count(self) -> int | None:
        return 0

    def counts_programs(self) -> bool:
        raise RuntimeError


@pytest.mark.parametrize(("framework", "least"), [(Compiler, 100), (Counting, 1000), (Broken, 0)])
def test_programs_that_are_not_counted_lower_it(framework: type[Compiler], least: int) -> None:
    tracker = RunTracker(Frameworks([framework()]), Unguarded())
    policy = POLICY._replace(array_bytes=least or 1)  # whatever is known of NumPy here
    tracker.start(policy)
    tracker.begin_run()
    assert tracker.least_host_growth(policy) == least
    tracker.stop()

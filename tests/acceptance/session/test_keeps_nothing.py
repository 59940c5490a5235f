"""The plugin keeps nothing of the user's alive, and is a leak of nobody's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [pytest.mark.newest, pytest.mark.usefixtures("cold")]

WITNESS = """

import gc, weakref

class Witness:
    alive = []

def marked(buffer, name):
    # Hung on an array, it is gone when the array is; a weak reference to the array itself would do for the stand-in,
    # but this sees an array that was brought back to life too.
    buffer.witness = Witness()
    Witness.alive.append((name, weakref.ref(buffer.witness)))
    return buffer

def pytest_unconfigure():
    gc.collect()
    print("WITNESSES", len(Witness.alive))
    print("STILL", sorted({name for name, reference in Witness.alive if reference() is not None}))
"""

SOURCE = """
    import pytest
    from conftest import marked

    KEPT = []

    @pytest.fixture(scope="module")
    def model():
        value = marked(Buffer(2**21), "fixture")
        KEPT.append(value)
        yield value

    def test_leaks(model):
        KEPT.append(marked(Buffer(100), "growing"))

    def test_retains(model):
        KEPT[:] = [*KEPT[:2], marked(Buffer(100), "retained")]

    def test_fails(model):
        held = marked(Buffer(100), "failed")
        raise ValueError

    def test_cycle():
        loop = [marked(Buffer(100), "cycle")]
        loop.append(loop)

    class TestClass:
        def test_instance(self):
            self.held = marked(Buffer(100), "instance")

    def test_once():
        assert len(KEPT) < 4
        KEPT.append(marked(Buffer(2**21), "unconfirmed"))

    def test_lets_go():
        KEPT.clear()
"""


def test_after_a_session_with_leaks_nothing_is_held(run: Runner, pytester: pytest.Pytester) -> None:
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(WITNESS)
    still = []
    for plugin in ("--no-gpu-leak", "--gpu-leak"):
        found = run(SOURCE, "-s", apart=True, plugin=plugin)
        still += [line for line in found.result.stdout.lines if line.startswith("STILL")]
        assert any(line.startswith("WITNESSES ") and int(line.split()[1]) >= 7 for line in found.result.stdout.lines)
    assert found.report["summary"]["leaked"] >= 2
    assert found.report["summary"]["unchecked"] == 1
    # pytest itself keeps instances of test classes, and with some plugins a failed test's traceback.
    assert still[1] == still[0]
    assert "growing" not in still[1]


@pytest.mark.interpreter
def test_between_tests_only_the_leak_itself_holds_the_array(run: Runner) -> None:
    run(
        """
        import gc, weakref
        KEPT, REFERENCES = [], []

        def test_leaks():
            buffer = Buffer(100)
            REFERENCES.append(weakref.ref(buffer))
            KEPT.append(buffer)

        def test_lets_go():
            KEPT.clear()
            assert all(reference() is None for reference in REFERENCES), [
                gc.get_referrers(reference()) for reference in REFERENCES
            ]
        """
    ).result.assert_outcomes(passed=2)


def test_the_heap_does_not_grow_with_clean_tests(run: Runner) -> None:
    """Objects of ours that stay after a test: its record, which is plain data, and no more."""
    found = run(
        """
        import gc, pytest

        COUNTS = []

        @pytest.mark.parametrize("i", range(200))
        def test_it(i):
            Buffer()
            if i % 50 == 49:
                COUNTS.append(sum(str(vars(type)["__module__"].__get__(type(o))).startswith("pytest_gpuleak") for o in gc.get_objects()))

        def test_growth():
            assert COUNTS[-1] - COUNTS[0] <= 160, COUNTS
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=201)


@pytest.mark.torch
def test_weak_references_and_swaps_on_shared_tensors(run: Runner) -> None:
    pytest.importorskip("torch")
    found = run(
        """
        import torch, weakref, gc, pytest
        CACHE = {}

        @pytest.fixture(scope="module")
        def model():
            return torch.nn.Linear(4, 4)

        def test_swap(model):
            new = torch.nn.Parameter(torch.zeros(4, 4))
            gc.collect()
            torch.utils.swap_tensors(model.weight, new)

        def test_swap_what_is_left_behind():
            left = CACHE.setdefault("x", torch.ones(3))
            torch.utils.swap_tensors(left, torch.zeros(3))

        def test_no_weak_references(model):
            assert weakref.getweakrefcount(model.weight) == 0
        """
    )
    found.result.assert_outcomes(passed=3)
    assert found.tests["test_swap_what_is_left_behind"]["findings"][0]["kind"] == "retained"

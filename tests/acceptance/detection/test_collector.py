"""A test's own use of the collector behaves as without the plugin."""

from __future__ import annotations

import gc
import importlib
import textwrap
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.heap.collector import epochs_supported

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.interpreter

SOURCE = """
    import gc, weakref
    import pytest

    class Node:
        pass

    def cycle():
        node = Node()
        node.itself = node
        return weakref.ref(node)

    OLD = []
    KEPT = []
    FIGURES = []
    gc.callbacks.append(lambda phase, info: FIGURES.append(info["collected"]))

    def old_garbage():
        node = Node()
        node.itself, reference = node, weakref.ref(node)
        KEPT.append(node)
        del node
        gc.collect()
        KEPT.clear()
        return reference

    def test_collect_is_full():
        '''Garbage made by an earlier test, frozen since, is found.'''
        gc.disable()
        try:
            OLD.append(cycle())
        finally:
            gc.enable()

    def test_collect_reaches_old_garbage():
        reference = old_garbage()
        assert reference() is not None
        assert gc.collect() >= 1
        assert reference() is None

    def test_count_objects():
        gc.collect()
        before = len(gc.get_objects())
        assert before > 10_000
        kept = [[] for _ in range(100)]
        gc.collect()
        assert 100 <= len(gc.get_objects()) - before <= 110

    def test_count_objects_with_arrays():
        buffers = [Buffer() for _ in range(10)]
        gc.collect()
        before = len(gc.get_objects())
        gc.collect()
        assert len(gc.get_objects()) - before <= 2

    def test_young_collection_after_a_look():
        reference = cycle()
        assert gc.get_objects()
        gc.collect(1)
        assert reference() is None

    def test_referrers_of_old_objects():
        assert [holder for holder in gc.get_referrers(KEPT) if holder is globals()]
        assert gc.get_referrers(object()) == []

    def test_generations():
        assert gc.get_objects(generation=2)
        assert any(o is KEPT for o in gc.get_objects(generation=2))

    def test_nothing_is_frozen():
        assert gc.get_freeze_count() < 5000  # Python 3.12 freezes a few hundred as it starts

    def test_freeze_and_unfreeze():
        reference = cycle()
        buffer = Buffer()
        gc.freeze()
        assert gc.get_freeze_count() > 10_000
        gc.collect()
        assert reference() is not None
        gc.unfreeze()
        assert gc.get_freeze_count() == 0
        gc.collect()
        assert reference() is None

    def test_disable():
        gc.disable()
        try:
            reference = cycle()
            junk = [[] for _ in range(5000)]
            assert reference() is not None
            assert not gc.isenabled()
        finally:
            gc.enable()

    def test_weak_references():
        buffer = Buffer()
        gc.collect()
        assert weakref.getweakrefcount(buffer) == 0
        gc.get_objects()
        assert weakref.getweakrefs(buffer) == []

    def test_finalizers_run():
        called = []
        node = Node()
        node.itself = node
        weakref.finalize(node, called.append, 1)
        del node
        gc.collect()
        assert called == [1]

    def test_one_call_is_one_collection():
        phases = []
        callback = lambda phase, info: phases.append((phase, info["generation"]))
        gc.disable()
        gc.collect()
        gc.callbacks.append(callback)
        try:
            for _ in range(10):
                cycle()
            found = gc.collect()
            assert 10 <= found <= 25  # a node, and up to Python 3.10 its dict
            assert phases == [("start", 2), ("stop", 2)]
            assert FIGURES[-1] == found
            assert callback in gc.callbacks
        finally:
            gc.callbacks.remove(callback)
            gc.enable()

    def test_a_callback_that_looks_at_the_heap():
        reference = old_garbage()
        callback = lambda phase, info: gc.get_objects()
        gc.callbacks.append(callback)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(callback)
        assert reference() is None
"""


def test_as_without_the_plugin(run: Runner, pytester: pytest.Pytester) -> None:
    # In a process of its own: what an outer run holds would be counted too.
    without = run(SOURCE, plugin="--no-gpu-leak", apart=True)
    without.result.assert_outcomes(passed=14)
    with_it = run("", apart=True)
    with_it.result.assert_outcomes(passed=14)
    assert set(with_it.verdicts.values()) == {"clean"}


@pytest.mark.parametrize("mode", ["epoch", "scan"])
@pytest.mark.parametrize(
    "calls", [["gc.collect()", "gc.get_objects()", "gc.get_referrers(KEPT)"], ["gc.freeze()"]], ids=["looks", "freeze"]
)
def test_a_leak_around_a_look_at_the_heap_is_found(run: Runner, calls: list[str], mode: str) -> None:
    found = run(
        "import gc\n"
        + "".join(
            f"""
KEPT_{number} = KEPT = []

def test_before_{number}(KEPT=KEPT):
    KEPT.append(Buffer(100))
    {call}

def test_after_{number}(KEPT=KEPT):
    {call}
    KEPT.append(Buffer(200))

def test_clean_{number}(KEPT=KEPT):
    buffer = Buffer(300)
    {call}
"""
            for number, call in enumerate(calls)
        )
        + "del KEPT\n",
        f"--gpu-leak-scan={mode}",
        apart=True,
    )
    for number in range(len(calls)):
        before, after = f"test_before_{number}", f"test_after_{number}"
        assert (found.verdicts[before], found.verdicts[after]) == ("leaked", "leaked")
        assert found.verdicts[f"test_clean_{number}"] == "clean"
        assert (found.finding(before)["bytes"], found.finding(after)["bytes"]) == (100, 200)
        assert found.holder(before) == f"test_it.KEPT_{number}[0]"


def test_garbage_made_while_the_user_has_frozen_the_heap_is_no_leak(run: Runner) -> None:
    # Arrays that are older than the class's fixture are searched for on the whole heap, which is frozen again after it.
    found = run(
        """
        import gc, unittest

        def test_freezes():
            gc.freeze()

        class TestIt(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.shared = Buffer()

            def test_error(self):
                value = Buffer(2**22)
                try:
                    raise ValueError
                except ValueError as error:
                    kept = error
                gc.collect()

            def test_other(self):
                pass
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=3)
    assert set(found.verdicts.values()) <= {"clean", "noted"}


def test_a_fixture_that_freezes_for_good(run: Runner) -> None:
    found = run(
        """
        import gc, pytest
        KEPT, OLD = [], [Buffer() for _ in range(10)]

        @pytest.fixture(scope="module", autouse=True)
        def frozen():
            gc.freeze()
            yield
            gc.unfreeze()

        def test_clean():
            Buffer()
            assert gc.get_freeze_count() > 10_000

        def test_leak():
            KEPT.append(Buffer(7))

        def test_thaws():
            gc.unfreeze()
            Buffer()

        def test_last():
            pass
        """,
        apart=True,
    )
    assert found.verdicts == {"test_clean": "clean", "test_leak": "leaked", "test_thaws": "clean", "test_last": "clean"}
    assert found.finding("test_leak")["bytes"] == 7


def test_a_conftest_that_binds_the_functions(run: Runner, pytester: pytest.Pytester) -> None:
    conftest = pytester.path / "conftest.py"
    conftest.write_text("from gc import get_objects, collect\n" + conftest.read_text())
    found = run(
        """
        import conftest
        KEPT = ["marker"]

        def test_sees_everything():
            assert any(o is KEPT for o in conftest.get_objects())
        """,
        apart=True,
    )
    assert found.verdicts == {"test_sees_everything": "clean"}
    found.result.assert_outcomes(passed=1)


@pytest.mark.skipif(not epochs_supported(), reason="a scan brings no collection forward")
def test_garbage_that_a_fixture_collects_makes_no_suspect(run: Runner) -> None:
    """A suite whose fixture calls `gc.collect()` after each test ran each of them that leaves garbage three times."""
    found = run(
        """
        import gc, pytest

        RUNS = []

        @pytest.fixture(autouse=True)
        def cleanup():
            gc.collect()
            yield
            gc.collect()

        @pytest.mark.parametrize("number", range(3))
        def test_garbage(number):
            node = [bytearray(30 << 20)]
            node.append(node)
            RUNS.append(number)

        def test_last():
            assert RUNS == [0, 1, 2]
        """,
        apart=True,
    )
    assert set(found.verdicts.values()) == {"clean"}
    found.result.assert_outcomes(passed=4)


@pytest.mark.skipif(not epochs_supported(), reason="a scan brings no collection forward")
def test_errors_in_finalizers_that_we_bring_forward_fail_nobody(run: Runner, pytester: pytest.Pytester) -> None:
    source = """
        class Rude:
            def __del__(self):
                raise ValueError("going")

        def test_makes_rude_garbage():
            rude = Rude()
            rude.itself = rude

        def test_next():
            pass
    """
    found = run(source, "-W", "error")
    found.result.assert_outcomes(passed=2, warnings=1)
    found.result.stdout.fnmatch_lines(["*ValueError ignored in a finalizer*test_makes_rude_garbage*"])


@pytest.mark.skipif(
    not epochs_supported(), reason="without generations, garbage piles up as it does without the plugin"
)
def test_garbage_does_not_pile_up(run: Runner) -> None:
    """Frozen garbage would be freed by nobody: the heap stays small over many tests that make cycles."""
    source = textwrap.dedent(
        """
        import gc, pytest

        class Node:
            alive = 0

            def __init__(self):
                Node.alive += 1
                self.itself = self

            def __del__(self):
                Node.alive -= 1

        @pytest.mark.parametrize("i", range(300))
        def test_cycles(i):
            for _ in range(5):
                Node()
            assert Node.alive < 500
        """
    )
    run(source).result.assert_outcomes(passed=300)


def test_what_the_check_itself_allocates_frees_no_cycle(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use of a device loads modules in the check: an automatic collection there freed the test's cycle."""
    counters = importlib.import_module("pytest_gpuleak.engine.detect.counters")
    original = counters.CounterWatch.end

    def end(watch: object, *arguments: object, **options: bool) -> object:
        assert [[] for _ in range(3 * gc.get_threshold()[0])]
        return original(watch, *arguments, **options)

    monkeypatch.setattr(counters.CounterWatch, "end", end)
    source = """
        import gc

        def test_cycle():
            buffer = Buffer(64)
            buffer.itself = buffer

        def test_collections_are_on():
            assert gc.isenabled()
    """
    found = run(source, "--gpu-leak-cycles=fail")
    assert found.verdicts == {"test_cycle": "leaked", "test_collections_are_on": "clean"}
    assert [finding["kind"] for finding in found.tests["test_cycle"]["findings"]] == ["cycle"]

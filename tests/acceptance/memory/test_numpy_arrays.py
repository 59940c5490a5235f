"""NumPy arrays that tests leave behind, end to end: found by the heap's counter, named by a walk over the heap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.registry import untracked_array_counts
from pytest_gpuleak.adapters.untracked import MetArrays
from pytest_gpuleak.engine.judge.untracked import CUT
from pytest_gpuleak.explain.untracked_arrays import HeapArrays

if TYPE_CHECKING:
    from tests.conftest import Runner

pytest.importorskip("numpy")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cold")]

KIB = 2**10
MIB = 2**20


def test_arrays_that_grow(run: Runner) -> None:
    """What else may keep an array, and how it is named there: tests/explain/test_untracked_arrays.py."""
    found = run(
        """
        import tracemalloc
        import numpy as np
        import pytest

        KEPT, VIEWS, MANY, BUFFERS, TRACED = [], [], [], [], []

        def test_half_a_mebibyte():
            TRACED.append(tracemalloc.is_tracing())
            KEPT.append(np.ones(2**16))

        def test_view():
            samples = np.random.default_rng(0).normal(size=2**21)
            VIEWS.append(samples[:10])

        def test_many_small():
            MANY.append([np.ones(128) for _ in range(1000)])

        def test_buffer():
            BUFFERS.append(np.frombuffer(bytes(2**20), dtype="uint8"))

        def test_refuses_tracing():
            assert not tracemalloc.is_tracing()
            KEPT.append(np.zeros(2**17))

        def test_sees_tracing():
            assert TRACED == [False, False, True]  # the recorded run alone is traced
            assert not tracemalloc.is_tracing()

        def test_below():
            KEPT.append(np.ones(2**14))

        @pytest.mark.gpu_leak(host_mb=2)
        def test_under_its_own_limit():
            KEPT.append(np.ones(2**17))
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=8)
    clean = ("test_sees_tracing", "test_below", "test_under_its_own_limit")
    assert found.verdicts == dict.fromkeys(found.tests, "leaked") | dict.fromkeys(clean, "clean")
    findings = {name: found.finding(name) for name in found.tests if name not in clean}
    assert {(one["kind"], one["device"], one["failed"]) for one in findings.values()} == {("growing", "cpu", True)}
    assert {name: one["holder"]["root"] for name, one in findings.items()} == {
        "test_half_a_mebibyte": "test_it.KEPT",
        "test_view": "test_it.VIEWS",
        "test_many_small": "test_it.MANY",
        "test_buffer": "test_it.BUFFERS",
        "test_refuses_tracing": "test_it.KEPT",
    }
    half = findings["test_half_a_mebibyte"]
    assert (half["count"], half["bytes"], half["bytes_per_run"]) == (1, 512 * KIB, 512 * KIB)
    (array,) = half["tensors"]
    assert (array["shape"], array["dtype"], array["framework"]) == ([2**16], "float64", "numpy")
    assert (array["created"]["file"], array["created"]["code"]) == ("test_it.py", "KEPT.append(np.ones(2**16))")
    assert (findings["test_many_small"]["count"], findings["test_many_small"]["bytes"]) == (1000, 1000 * KIB)
    assert findings["test_buffer"]["tensors"][0]["storage_bytes"] == MIB
    assert findings["test_refuses_tracing"]["bytes"] == MIB
    view = findings["test_view"]
    assert (view["tensors"][0]["bytes"], view["tensors"][0]["storage_bytes"]) == (80, 16 * MIB)
    assert view["hint"] == (
        "10 numbers keep 16.0 MiB, the whole array that they were taken from, in `test_it.VIEWS`: copy them (`.copy()`)."
    )
    found.result.stdout.fnmatch_lines(["  growing: 1 array, 16.0 MiB on cpu; each run leaves 16.0 MiB more"])


def test_arrays_that_stay(run: Runner) -> None:
    found = run(
        """
        import functools
        import numpy as np
        import pytest

        TABLE = LAST = None
        KEPT = {}

        def test_table():
            global TABLE
            TABLE = np.ones(2**20)

        def test_replaced():
            global LAST
            LAST = np.ones(2**21)

        @functools.lru_cache
        def grid():
            return np.ones(3 * 2**17)

        def test_cache():
            assert grid().size

        @pytest.mark.gpu_leak(retained_mb=8)
        def test_below_its_own_limit():
            KEPT.setdefault("once", np.ones(2**18))

        def test_imports(tmp_path, monkeypatch):
            (tmp_path / "imported_late.py").touch()
            monkeypatch.syspath_prepend(tmp_path)
            import imported_late
            KEPT.setdefault("imports", np.ones(2**19))

        class TestIt:
            def setup_method(self):
                KEPT.pop("own", None)

            def test_fills(self):
                KEPT["own"] = self.value = np.ones(2**18)
        """,
        apart=True,
    )
    assert found.verdicts == {
        "test_imports": "leaked",
        "test_table": "leaked",
        "test_replaced": "leaked",
        "test_cache": "leaked",
        "test_below_its_own_limit": "clean",  # as small growth is not looked into
        "TestIt::test_fills": "leaked",
    }
    names = ("test_table", "test_replaced", "test_cache", "test_imports")
    findings = {name: found.finding(name) for name in names}
    assert {(one["kind"], one["bytes_per_run"]) for one in findings.values()} == {("retained", 0)}
    # The heap grows in two runs: the first instance keeps the first array. The third run replaces the second one's.
    own = found.finding("TestIt::test_fills")
    assert (own["kind"], own["bytes"], own["failed"]) == ("retained", 2 * MIB, True)
    assert {name: (one["holder"]["root"], one["bytes"]) for name, one in findings.items()} == {
        "test_table": ("test_it.TABLE", 8 * MIB),
        "test_replaced": ("test_it.LAST", 16 * MIB),
        "test_cache": ("test_it.grid", 3 * MIB),
        "test_imports": ("test_it.KEPT", 4 * MIB),
    }


REPLACED_THROUGH_A_CYCLE = """
    import functools
    import threading
    import numpy as np

    class Node:
        def __init__(self, value):
            self.value, self.me = value, self

    def test_cycle():
        Node.kept = Node({"a": np.ones(2**19), "b": (np.ones(2**18),)})

    def test_thread():
        setting = lambda: setattr(Node, "last", functools.partial(print, np.ones(2**19)))
        thread = threading.Thread(target=setting)
        thread.start()
        thread.join()

    def test_garbage():
        Node(np.ones(2**19))
    """


def test_what_each_run_replaces_through_a_cycle_stays(run: Runner) -> None:
    found = run(REPLACED_THROUGH_A_CYCLE, apart=True)
    assert found.verdicts == {"test_cycle": "leaked", "test_thread": "leaked", "test_garbage": "clean"}
    stays, named = found.finding("test_cycle"), found.finding("test_thread")
    assert (stays["kind"], stays["bytes"], stays["holder"]["root"]) == ("retained", 6 * MIB, "test_it.Node.kept")
    # Not the array of the same size that `test_cycle` has left: what young objects hold is the test's own.
    assert (named["kind"], named["bytes"], named["holder"]["root"]) == ("retained", 4 * MIB, "test_it.Node.last")


CLEAN = """
    import functools
    import numpy as np
    import pytest
    import threading

    DATA = np.random.default_rng(1).normal(size=(1000, 500))
    LISTS = {}
    LAST = None

    class Fit:
        def fit(self, inputs, outputs):
            self.inputs = inputs.copy()
            self.coefficients = np.linalg.lstsq(inputs, outputs, rcond=None)[0]
            return self

    @functools.lru_cache
    def small():
        return np.arange(20_000)

    @pytest.fixture(scope="module")
    def data():
        return np.ones((1000, 1000))

    def test_first_use():
        np.fft.fft(np.ones(4096))
        np.linalg.svd(np.random.default_rng(0).normal(size=(100, 100)))

    def test_large_temporaries():
        assert (np.ones((2048, 1024)) * 2).sum()

    def test_cache_filled_once():
        assert small().size

    def test_replaces_a_small_one():
        global LAST
        LAST = np.ones(100)

    def test_load(tmp_path):
        np.save(tmp_path / "a.npy", DATA)
        assert np.load(tmp_path / "a.npy").shape == np.load(tmp_path / "a.npy", mmap_mode="r").shape

    def test_fit():
        assert Fit().fit(DATA, DATA[:, 0]).coefficients.shape

    def test_of_a_wider_fixture(data):
        assert data.sum()

    def test_cycle():
        cycle = [np.ones(2**20)]
        cycle.append(cycle)

    def test_memory_that_is_no_array():
        LISTS["once"] = [None] * 500_000

    def test_thread():
        sums = []
        thread = threading.Thread(target=lambda: sums.append(np.ones(2**20).sum()))
        thread.start()
        thread.join()

    def test_module_with_tables(tmp_path, monkeypatch):
        (tmp_path / "tables.py").write_text("import numpy as np\\nTABLE = np.ones(2**19)\\n")
        monkeypatch.syspath_prepend(tmp_path)
        import tables
        assert tables.TABLE.size

    @pytest.mark.parametrize("size", range(200, 260, 10))
    def test_parametrized(size):
        assert (np.ones((size, 300)) @ np.ones((300, size))).sum()
"""


def test_what_a_wider_fixture_holds_is_a_note_unless_it_grows_and_what_is_imported_hides_no_growth(run: Runner) -> None:
    """60 modules may take 2.8 MiB: the arrays were no growth where the test imported them first."""
    found = run(
        """
        import importlib, sys, types
        import numpy as np, pytest

        KEPT, ONCE = [], {}

        def imports(folder, monkeypatch, prefix):
            monkeypatch.syspath_prepend(folder)
            for number in range(60):
                (folder / f"{prefix}{number}.py").touch()
            importlib.invalidate_caches()
            for number in range(60):
                importlib.import_module(f"{prefix}{number}")

        def test_imports_and_leaks(tmp_path, monkeypatch):
            imports(tmp_path, monkeypatch, "late")
            KEPT.append(np.ones(2**17))

        def test_imports_and_fills_a_cache(tmp_path, monkeypatch):
            imports(tmp_path, monkeypatch, "later")
            ONCE.setdefault("table", np.ones(2**17))

        def test_imports(tmp_path, monkeypatch):
            imports(tmp_path, monkeypatch, "latest")

        @pytest.fixture(scope="class")
        def imported():
            for number in range(16):
                sys.modules[f"imported_{number}"] = types.ModuleType(f"imported_{number}")

        class TestImported:
            def test_keeps_and_leaks(self, imported):
                ONCE["large"] = np.ones(2**18)

            def test_last(self, imported):
                pass

        @pytest.fixture(scope="class")
        def data():
            return {"log": []}

        class TestData:
            def test_sets_up(self, data):
                pass

            def test_replaces(self, data):
                data["last"] = np.ones(2**18)

            def test_leaks(self, data):
                data["log"].append(np.ones(2**18))

            def test_last(self, data):
                pass
        """,
        apart=True,
    )
    expected = {name: "leaked" if "leaks" in name else "clean" for name in found.tests}
    assert found.verdicts == expected | {"TestData::test_replaces": "noted"}
    assert found.finding("test_imports_and_leaks")["kind"] == "growing"
    note = found.finding("TestData::test_replaces")
    assert (note["kind"], note["until_teardown"], note["holder"]["root"]) == ("retained", True, "fixture 'data'")


def test_a_clean_suite(run: Runner) -> None:
    found = run(CLEAN, apart=True)
    found.result.assert_outcomes(passed=17)
    assert set(found.verdicts.values()) == {"clean"}


def test_a_dear_counter_hides_no_array(run: Runner) -> None:
    """Thousands of holes in malloc's heap make reading it dear, and what is freed leaves room for later arrays."""
    found = run(
        """
        import numpy as np
        import pytest

        KEPT, ONCE = [], {}
        HOLES = [bytearray(600 + 16 * (number % 20)) for number in range(30_000)]
        del HOLES[::2]

        @pytest.mark.parametrize("number", range(25))
        def test_quick(number):
            assert number < 25

        @pytest.mark.parametrize("number", range(3))
        def test_grows(number):
            KEPT.append(np.ones(2**17))

        def test_large():
            assert np.ones(2**22).sum() == 2**22

        def test_kept_after_a_suspect():
            ONCE["first"] = np.ones(2**18)

        @pytest.mark.parametrize("number", range(4))
        def test_small(number):
            assert np.ones(2**18).sum() == 2**18

        def test_kept_after_clean_tests():
            ONCE["second"] = np.ones(2**18)

        def test_last():
            assert np.ones(2**20).sum() == 2**20
        """,
        apart=True,
    )
    kinds = {name: {one["kind"] for one in found.tests[name]["findings"]} for name in found.tests}
    expected = {
        "test_quick": set(),
        "test_grows": {"growing"},
        "test_large": set(),
        "test_kept_after_a_suspect": {"retained"},
        "test_small": set(),
        "test_kept_after_clean_tests": {"retained"},
        "test_last": set(),
    }
    assert kinds == {name: expected[name.partition("[")[0]] for name in kinds}


@pytest.mark.parametrize(("elements", "added", "runs"), [(10, 1, 2), (2**17, 1, 3), (10, 0, 1), (2**19, 0, 1)])
def test_growth_that_no_array_can_explain_is_not_recorded(run: Runner, elements: int, added: int, runs: int) -> None:
    """Where all arrays are smaller than what the runs have added, one more would tell nothing."""
    if not untracked_array_counts():
        pytest.skip("this interpreter does not count the references to NumPy's dtypes")
    found = run(
        f"""
        import numpy as np

        ARRAYS, KEPT, SMALL = np.ones({elements}), [], []

        def test_bytes():
            KEPT.append(bytes(2**21))
            SMALL.extend(np.ones(1) for _ in range({added}))

        def test_number_of_runs():
            assert len(KEPT) == {runs}
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=2)
    assert set(found.verdicts.values()) == {"clean"}


def test_mapped_files(run: Runner) -> None:
    found = run(
        """
        import numpy as np

        MAPS, TABLE = [], []

        def test_maps_another_file(tmp_path):
            MAPS.append(np.memmap(tmp_path / "weights.bin", dtype="uint8", mode="w+", shape=(2**22,)))

        def test_view_of_a_map(tmp_path):
            MAPS.append({"view": np.asarray(np.memmap(tmp_path / "w.bin", dtype="uint8", mode="w+", shape=(2**22,)))})

        def test_maps_once(tmp_path_factory):
            path = tmp_path_factory.getbasetemp() / "once.npy"
            if not TABLE:
                np.save(path, np.ones(2**20))
                TABLE.append(np.load(path, mmap_mode="r"))

        def test_drops_its_map(tmp_path):
            mapped = np.memmap(tmp_path / "x.bin", dtype="uint8", mode="w+", shape=(2**24,))
            mapped[:] = 1
        """,
        apart=True,
    )
    assert found.verdicts == {
        "test_maps_another_file": "leaked",
        "test_view_of_a_map": "leaked",
        "test_maps_once": "noted",
        "test_drops_its_map": "clean",
    }
    mapped = found.finding("test_maps_another_file")
    assert (mapped["kind"], mapped["device"], mapped["bytes"]) == ("growing", "disk", 4 * MIB)
    assert mapped["tensors"][0]["file"].endswith("weights.bin")
    assert "`weights.bin` stays mapped" in mapped["hint"]
    assert found.finding("test_view_of_a_map")["holder"]["root"] == "test_it.MAPS"
    assert found.finding("test_maps_once")["kind"] == "retained"
    found.result.stdout.fnmatch_lines(["  file     *weights.bin"])


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_memory_shared_with_torch_is_counted_once_and_a_mapped_files_is_the_files(run: Runner) -> None:
    pytest.importorskip("torch")
    found = run(
        """
        import numpy as np
        import torch

        TENSORS, ARRAYS, STORAGES, SLOT = [], [], [], {}

        def mapped(tmp_path):
            return torch.from_numpy(np.memmap(tmp_path / "x.bin", dtype="uint8", mode="w+", shape=(2**22,)))

        def test_mapped_stays(tmp_path):
            SLOT["weights"] = mapped(tmp_path)

        def test_mapped_grows(tmp_path):
            TENSORS.append(mapped(tmp_path)[5:])

        def test_tensor_over_an_array():
            TENSORS.append(torch.from_numpy(np.ones(2**20)))

        def test_array_over_a_tensor():
            ARRAYS.append(torch.ones(2**20).numpy())

        def test_both():
            array = np.ones(2**20)
            ARRAYS.append(array)
            TENSORS.append(torch.from_numpy(array))

        def test_storage():
            STORAGES.append(torch.ones(2**10).untyped_storage())

        def test_clean():
            tensor = torch.from_numpy(np.ones(2**20))
            assert tensor.numpy().sum()
        """,
        apart=True,
    )
    assert found.verdicts == {
        "test_mapped_stays": "noted",
        "test_mapped_grows": "leaked",
        "test_tensor_over_an_array": "leaked",
        "test_array_over_a_tensor": "leaked",
        "test_both": "leaked",
        "test_storage": "leaked",
        "test_clean": "clean",
    }
    for finding in (found.finding(name) for name in found.tests if "mapped" in name):
        assert (finding["count"], finding["device"], finding["bytes"]) == (1, "disk", 4 * MIB)
    assert found.finding("test_tensor_over_an_array")["holder"]["root"] == "test_it.TENSORS"
    assert found.finding("test_array_over_a_tensor")["holder"]["root"] == "test_it.ARRAYS"
    both = found.finding("test_both")
    assert (both["count"], both["bytes"], both["holder"]["root"]) == (1, 8 * MIB, "test_it.TENSORS")
    assert [holder["root"] for holder in both["other_holders"]] == ["test_it.ARRAYS"]


BESIDE = """
    import numpy as np, pytest

    KEPT, TEXTS, TABLES = [], [], []

    @pytest.mark.parametrize("i", range(3))
    def test_texts(i):
        KEPT.append(Buffer(100))
        TEXTS.append([f"{i} {n}" * 200 for n in range(8000)])

    def test_arrays():
        KEPT.append(Buffer(100))
        TABLES.append(np.ones(2**20))
"""


def test_what_grows_beside_arrays_is_looked_for(run: Runner) -> None:
    found = run(BESIDE, apart=True)
    assert set(found.verdicts.values()) == {"leaked"}
    roots = {one["holder"]["root"]: one["tensors"][0]["created"] for one in found.tests["test_arrays"]["findings"]}
    assert roots.keys() == {"test_it.KEPT", "test_it.TABLES"}
    assert roots["test_it.TABLES"]["code"] == "TABLES.append(np.ones(2**20))"


def test_a_walk_that_was_cut_makes_a_note_or_fails_beyond_the_hosts_limit(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeapArrays, "walk", lambda _: None)
    found = run(
        """
        import numpy as np

        KEPT, ONCE, LARGE, RUNS = [], [], [], []

        def test_grows():
            RUNS.append("grows")
            KEPT.append(np.ones(2**18))

        def test_once():
            RUNS.append("once")
            ONCE[:] = ONCE or [np.ones(2**18)]

        def test_runs():  # there is nothing to compare a third run with
            assert RUNS == ["grows", "grows", "once", "once"]

        def test_large():
            LARGE.append(np.ones(2**21))
        """
    )
    found.result.assert_outcomes(passed=4)
    notes = ("test_grows", "test_once")
    assert found.verdicts == dict.fromkeys(notes, "noted") | {"test_runs": "clean", "test_large": "leaked"}
    for note in map(found.finding, notes):
        assert (note["kind"], note["failed"], note["bytes_per_run"]) == ("host", False, 0)
        assert note["bytes"] > MIB
        assert note["evidence"][-1] == CUT
    assert (found.finding("test_large")["kind"], found.finding("test_large")["failed"]) == ("host", True)


def test_a_second_walk_that_was_cut_makes_a_note(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first of two walks did not meet would look new."""
    monkeypatch.setattr(HeapArrays, "find", lambda *_: ([], None))
    monkeypatch.setattr(HeapArrays, "walk", lambda _: MetArrays({1: 64 * MIB}, {}))
    found = run(
        """
        import numpy as np

        KEPT = []

        def test_it():
            KEPT.append(np.ones(2**18))
        """
    )
    assert found.verdicts == {"test_it": "noted"}
    assert found.finding("test_it")["evidence"][-1] == found.finding("test_it")["judged"]["cut"] == CUT

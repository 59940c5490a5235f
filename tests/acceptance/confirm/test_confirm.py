"""A suspect is run again: what grows, what stays, and what cannot be told."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.session.rerun.rerun import _interrupts

if TYPE_CHECKING:
    from tests.conftest import Runner


@pytest.mark.newest
def test_what_grows_what_stays_and_what_cannot_be_told(run: Runner) -> None:
    found = run(
        """
        import random, unittest
        KEPT, SLOT, CACHE, ONCE = [], {}, {}, []
        STATE = {"log": [], "best": None}

        def test_grows():
            KEPT.append(Buffer(1))

        def test_small_slot():
            SLOT["small"] = Buffer(1000)

        def test_large_slot():
            SLOT["large"] = Buffer(2**20)

        def test_slot_of_another_size():
            SLOT["last"] = Buffer(random.randrange(1, 10_000))

        def lookup():
            if "x" not in CACHE:
                CACHE["x"] = Buffer(100)
            return CACHE["x"]

        def test_cache():
            assert lookup()

        def test_cache_again():
            assert lookup()

        def test_slot_and_list():
            SLOT["beside"] = Buffer(64)
            KEPT.append(Buffer(64))

        def test_under_one_root():
            STATE["best"] = STATE["best"] or Buffer(10)
            STATE["log"].append(Buffer(20))

        def test_runs_once():
            assert not ONCE
            ONCE.append(Buffer(100))

        class TestModel:
            def setup_method(self):
                assert not hasattr(self, "model")

            def test_it(self):
                self.model = Buffer(2**21)

        class TestCase(unittest.TestCase):
            KEPT = []

            def test_it(self):
                self.assertEqual(self.KEPT, [])
                self.KEPT.append(Buffer(2**21))

            def test_next(self):
                pass
        """
    )
    assert found.verdicts == {
        "test_grows": "leaked",
        "test_small_slot": "noted",
        "test_large_slot": "leaked",
        "test_slot_of_another_size": "noted",
        "test_cache": "noted",
        "test_cache_again": "clean",
        "test_slot_and_list": "leaked",
        "test_under_one_root": "leaked",
        "test_runs_once": "noted",
        "TestModel::test_it": "leaked",
        "TestCase::test_it": "leaked",
        "TestCase::test_next": "clean",
    }
    together = ("test_slot_and_list", "test_under_one_root")
    kinds = {
        name: found.finding(name)["kind"] for name in found.tests.keys() - together if found.tests[name]["findings"]
    }
    once = dict.fromkeys(("test_runs_once", "TestCase::test_it"), "unconfirmed")
    assert kinds == dict.fromkeys(kinds, "retained") | {"test_grows": "growing"} | once
    for name, size in (("test_small_slot", 1000), ("test_large_slot", 2**20)):
        finding = found.finding(name)
        assert (finding["count"], finding["bytes"], finding["bytes_per_run"]) == (1, size, 0)
        created = finding["tensors"][0]["created"]
        assert created["code"].startswith("SLOT") if size == 2**20 else created is None
    kinds = {one["holder"]["root"]: one["kind"] for one in found.tests["test_slot_and_list"]["findings"]}
    assert kinds == {"test_it.SLOT": "retained", "test_it.KEPT": "growing"}
    kinds = {one["kind"]: one["bytes"] for one in found.tests["test_under_one_root"]["findings"]}
    assert kinds == {"retained": 10, "growing": 20}
    finding = found.finding("TestModel::test_it")
    assert (finding["count"], finding["bytes"]) == (1, 2**21)
    assert "TestModel" in finding["holder"]["root"]
    assert "until the session ends" in finding["hint"]


@pytest.mark.newest
def test_what_the_re_runs_of_an_earlier_test_left_is_no_credit_of_the_test_that_lets_it_go(run: Runner) -> None:
    found = run(
        """
        KEPT, SLOT = [], {}

        def test_grows():
            KEPT.append(Buffer(2**21))

        def test_keeps_more_than_it_lets_go():
            KEPT.clear()  # with what the re-runs of the other test have added
            SLOT["x"] = Buffer(3 * 2**20)

        def test_keeps_as_much_as_it_lets_go():
            SLOT["x"] = None
            SLOT["y"] = Buffer(3 * 2**20)
        """
    )
    assert list(found.verdicts.values()) == ["leaked", "leaked", "noted"]


def test_a_note_does_not_depend_on_what_later_tests_let_go(run: Runner) -> None:
    found = run(
        """
        SLOT, KEPT = {}, []

        def test_replaces():
            SLOT["x"] = Buffer(100)

        def test_lets_go():
            SLOT.clear()

        def test_leaks():
            KEPT.append(Buffer(100))
        """
    )
    assert found.verdicts == {"test_replaces": "noted", "test_lets_go": "clean", "test_leaks": "leaked"}


@pytest.mark.newest
def test_a_holder_that_a_later_test_empties_is_named_where_a_cycle_keeps_the_memory(run: Runner) -> None:
    found = run(
        """
        class Neuron:
            instances = []

            def __init__(self):
                self.buffer, self.step = Buffer(), self.fire
                Neuron.instances.append(self)

            def fire(self):
                pass

        def test_grows():
            Neuron()

        def test_begins_again():
            Neuron.instances = []
        """
    )
    assert found.finding("test_grows")["holder"]["root"] == "test_it.Neuron.instances"


def test_a_test_is_run_again_as_often_as_it_says(run: Runner) -> None:
    found = run(
        """
        import pytest
        from collections import deque
        LAST, KEPT, RUNS, SLOT = [deque(maxlen=2) for _ in range(2)], [[], []], [0, 0], {}

        def append(number):
            RUNS[number] += 1
            KEPT[number].append(Buffer(100))

        @pytest.mark.gpu_leak(confirm=1)
        def test_ring_once():  # a bounded cache takes more than one re-run
            LAST[0].append(Buffer())

        def test_ring():
            LAST[1].append(Buffer())

        @pytest.mark.gpu_leak(confirm=1)
        def test_list_once():
            append(0)

        def test_list():
            append(1)

        def test_runs():
            assert RUNS == [1 + 1 + 1, 1 + 3 + 1]  # the first run, those that confirm, and one for the lines

        @pytest.mark.gpu_leak(confirm=0)
        def test_never():  # any survivor fails
            SLOT["x"] = Buffer(1)
        """,
        "--gpu-leak-confirm=3",
    )
    kinds = {name: found.finding(name)["kind"] for name in found.tests if name != "test_runs"}
    lists = dict.fromkeys(("test_ring_once", "test_list_once", "test_list"), "growing")
    assert kinds == lists | {"test_ring": "retained", "test_never": "unconfirmed"}
    for name in ("test_list_once", "test_list"):
        finding = found.finding(name)
        assert (finding["count"], finding["bytes"], finding["bytes_per_run"]) == (1, 100, 100)
    assert (found.verdicts["test_runs"], found.verdicts["test_never"]) == ("clean", "leaked")
    found.result.assert_outcomes(passed=len(found.tests))


def test_a_re_run_that_goes_otherwise(run: Runner) -> None:
    otherwise = [
        ("raise ValueError('again')", "failed in call"),
        ("pytest.skip('again')", "was skipped in call"),
        ("pytest.xfail('again')", "was skipped in call"),
        ("pytest.exit('again')", "failed in call"),
        ("sys.exit(3)", "failed in call"),
        ("raise BaseException('again')", "failed in call"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("time.sleep(30)", "took longer"),
        ("wait_for_ever()", "took longer"),
    ]
    found = run(
        """
        import pytest, sys, time

        BUILT = []

        def wait_for_ever():
            while True:
                try:
                    time.sleep(10)
                except Exception:
                    pass

        @pytest.fixture(scope="module")
        def shared():
            BUILT.append(1)
            yield BUILT
            BUILT.append("down")
        """
        + "".join(
            f"""
        KEPT_{number} = []

        def test_{number}(shared):
            if KEPT_{number}:
                {second}
            KEPT_{number}.append(Buffer(2**21))

        def test_next_{number}(shared):
            assert shared == [1]
            assert len(KEPT_{number}) == 1
        """
            for number, (second, _) in enumerate(otherwise)
        ),
        "--gpu-leak-confirm-limit=1",
        apart=True,
    )
    for number, (second, why) in enumerate(otherwise):
        assert (found.verdicts[f"test_{number}"], found.verdicts[f"test_next_{number}"]) == ("leaked", "clean"), second
        finding = found.finding(f"test_{number}")
        assert (finding["kind"], finding["judged"]["step"]) == ("unconfirmed", "5 run again in vain")
        assert why in finding["why_unconfirmed"]
    assert found.result.ret == 1
    found.result.assert_outcomes(passed=2 * len(otherwise))


def test_a_slow_test_is_not_run_again_nor_one_whose_fixtures_are_slow_to_build(run: Runner) -> None:
    found = run(
        """
        import time, pytest
        KEPT = []

        def test_it():
            time.sleep(0.3)
            KEPT.append(Buffer(100))

        @pytest.fixture(scope="module")
        def slow():
            time.sleep(0.3)

        def test_first(slow):
            KEPT.append(Buffer(100))

        def test_last(slow):
            KEPT.append(Buffer(100))
        """,
        "--gpu-leak-confirm-limit=0.2",
    )
    finding = found.finding("test_it")
    assert "over the limit" in finding["why_unconfirmed"]
    assert finding["judged"]["step"] == "4 not run again"
    assert found.finding("test_last")["kind"] == "unconfirmed"


def test_one_rank_of_several_is_not_run_again(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = run(
        """
        KEPT = []

        def test_it():
            KEPT.append(Buffer(100))
        """
    )
    assert "rank" in found.finding("test_it")["why_unconfirmed"]


def test_sub_tests_are_not_logged_twice(run: Runner) -> None:
    found = run(
        """
        import unittest
        KEPT = []

        class TestCase(unittest.TestCase):
            def test_it(self):
                for i in range(2):
                    with self.subTest(i=i):
                        KEPT.append(Buffer(100))
        """,
        "-v",
    )
    assert found.verdicts == {"TestCase::test_it": "leaked"}
    assert found.finding("TestCase::test_it")["count"] == 2
    assert found.result.stdout.str().count("SUBPASS") <= 2


@pytest.mark.slow
@pytest.mark.parametrize(("method", "only"), [("signal", "false"), ("thread", "true")])
def test_under_a_timeout_plugin(run: Runner, pytester: pytest.Pytester, method: str, only: str) -> None:
    pytest.importorskip("pytest_timeout")
    pytester.makeini(f"[pytest]\ntimeout = 2\ntimeout_method = {method}\ntimeout_func_only = {only}\n")
    found = run(
        """
        import time
        KEPT = []

        def test_hangs_again():
            if KEPT:
                time.sleep(60)
            KEPT.append(Buffer(2**21))

        def test_slow_but_in_time():
            time.sleep(1.2)
            KEPT.append(Buffer(100))

        def test_next():
            pass
        """,
        "--gpu-leak-confirm-limit=4",
        apart=True,
    )
    assert found.verdicts == {"test_hangs_again": "leaked", "test_slow_but_in_time": "leaked", "test_next": "clean"}
    assert found.finding("test_hangs_again")["kind"] == "unconfirmed"
    assert found.finding("test_slow_but_in_time")["kind"] == "growing"


def test_where_no_interrupt_can_come_one_that_is_raised_is_the_tests() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with _interrupts() as came:
            assert not came
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("loaded_before", "loaded_by_the_leak", "drawn_before"),
    [
        (["importlib.reload(random)", "random.seed(1)"], ["random.random()"], 1),
        # As Hypothesis does, it puts back the state: of the generator behind the module, another one by then.
        (["random.seed(1)"], ["state = random.getstate()", "importlib.reload(random)", "random.setstate(state)"], 0),
    ],
    ids=["before", "by the leak"],
)
def test_a_random_module_that_is_loaded_again_draws_on(
    run: Runner, loaded_before: list[str], loaded_by_the_leak: list[str], drawn_before: int
) -> None:
    found = run(
        f"""
        import importlib, random
        KEPT = []

        def test_before():
            {"; ".join(loaded_before)}

        def test_leaks():
            {"; ".join(loaded_by_the_leak)}
            KEPT.append(Buffer(100))

        def test_draws():
            print("drawn", random.random())
            assert False
        """,
        apart=True,
    )
    assert found.verdicts["test_leaks"] == "leaked"
    expected = random.Random(1)
    for _ in range(drawn_before):
        expected.random()
    found.result.stdout.fnmatch_lines([f"drawn {expected.random()}"])

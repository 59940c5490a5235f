"""Leaks in a series are told as each was the first time, and no verdict depends on which roots are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.lasting_roots import LastingRoots
from pytest_gpuleak.explain.paths import pattern_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Json, Run, Runner

pytestmark = [pytest.mark.interpreter, pytest.mark.slow]


def told(test: Json) -> Any:
    """What a report says about a test, without what differs between like leaks: indices."""
    return test["verdict"], [
        (
            finding["kind"],
            finding["failed"],
            finding["count"],
            finding["bytes"],
            finding["bytes_per_run"],
            finding["fingerprint"],
            finding["hint"],
            finding["tensors"][0]["created"] and finding["tensors"][0]["created"]["code"],
            [_holder(finding["holder"]), *map(_holder, finding["other_holders"])],
        )
        for finding in test["findings"]
    ]


def _holder(holder: Json) -> tuple[str, str, str]:
    return holder["kind"], holder["root"], pattern_of(holder["text"])


@pytest.fixture
def start(run: Runner) -> Runner:
    """As `run`, without a plugin that takes seconds to say nothing."""

    def start_quickly(source: str, *arguments: str, **options: Any) -> Run:
        return run(source, "-p", "no:hypothesispytest", *arguments, **options)

    return start_quickly


@pytest.fixture
def without_memory(start: Runner, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Run]:
    """Runs the last source again with the whole heap searched for each test."""

    def start_without() -> Run:
        with monkeypatch.context() as patch:
            patch.setattr(LastingRoots, "reach", lambda *_: None)
            patch.setattr(LastingRoots, "reach_up", lambda *_: None)
            return start("")

    return start_without


def told_by(found: Run) -> dict[str, Any]:
    """What a report says about each test."""
    return {name: told(test) for name, test in found.tests.items()}


MANY = """
    import collections, functools, sys, types, pytest

    HISTORY, CACHE, LATEST = [], {}, {}
    RECENT = collections.deque(maxlen=64)
    NESTED = {"runs": [{"losses": []}]}
    BOX = types.SimpleNamespace(kept=[])

    class Attention:
        masks = {}
        seen = []

    @functools.lru_cache(maxsize=None)
    def mask(i):
        return Buffer(300)

    def hook():
        pass

    hook.seen = []
"""

SHAPES = {
    "list": "HISTORY.append(Buffer(100))",
    "nested": "NESTED['runs'][0]['losses'].append({'loss': Buffer(100)})",
    "lru_cache": "mask(mask.cache_info().currsize)",
    "closure": "b = Buffer(100); HISTORY.append(lambda: b)",
    "cycle": "c = {'b': Buffer(100)}; c['self'] = c; HISTORY.append(c)",
    "slot": "LATEST['model'] = Buffer(2**20)",
}


@pytest.mark.slow
def test_a_series_of_leaks_of_many_shapes_is_told_as_each_was_the_first_time(
    start: Runner, without_memory: Callable[[], Run]
) -> None:
    tests = "".join(
        f"""
    def test_{shape.replace(" ", "_")}_{number}():
        {leak}
    """
        for shape, leak in SHAPES.items()
        for number in (1, 2)
    )
    told_with_memory = told_by(start(MANY + tests))
    # The second replaces what the first has left in the slot, and adds nothing.
    assert [told_with_memory[f"test_slot_{number}"][0] for number in (1, 2)] == ["leaked", "noted"]
    for name, verdict in told_with_memory.items():
        assert verdict == told_with_memory[name[:-1] + "1"] or name == "test_slot_2", name
    assert told_by(without_memory()) == told_with_memory


@pytest.mark.slow
def test_verdicts_do_not_depend_on_what_ran_before(start: Runner) -> None:
    source = """
        HISTORY, STATE = [], {"log": [], "best": None}

        def test_list():
            HISTORY.append(Buffer(100))

        def test_inner_list():
            STATE["log"].append({"x": Buffer(100)})

        def test_slot():
            STATE["best"] = Buffer(2**20)

        def test_both():
            b = Buffer(100)
            HISTORY.append(b)
            STATE["log"].append([b])
    """
    together = told_by(start(source, apart=True))
    backwards = [f"test_it.py::{name}" for name in reversed(together)]
    assert told_by(start("", *backwards, apart=True)) == together
    for name in together:
        assert told_by(start("", f"test_it.py::{name}", apart=True)) == {name: together[name]}


def test_twelve_leaks_into_one_list(start: Runner) -> None:
    found = start(
        """
        import pytest
        HISTORY = []

        @pytest.mark.parametrize("i", range(12))
        def test_it(i):
            HISTORY.append(Buffer(100 + i))
        """
    )
    for i in range(12):
        finding = found.finding(f"test_it[{i}]")
        told = [finding[name] for name in ("kind", "count", "bytes", "bytes_per_run", "other_holders")]
        assert told == ["growing", 1, 100 + i, 100 + i, []]
        # The index is the array's own: each leak runs three times, and that of any of its runs is seen.
        assert finding["holder"]["text"] in [f"test_it.HISTORY[{3 * i + run}]" for run in range(3)]
        assert finding["tensors"][0]["created"]["code"] == "HISTORY.append(Buffer(100 + i))"


def test_in_scan_mode_the_same_is_told(start: Runner) -> None:
    source = """
        HISTORY, SLOT = [], {}

        def test_first():
            HISTORY.append(Buffer(100))

        def test_second():
            HISTORY.append([Buffer(100)])

        def test_third():
            SLOT["x"] = Buffer(100)

        def test_fourth():
            SLOT["y"] = HISTORY[0] = Buffer(2**20)  # no walk names at once here what a later test lets go
    """
    epoch = {name: told(test) for name, test in start(source).tests.items()}
    scan = {name: told(test) for name, test in start("", "--gpu-leak-scan=scan").tests.items()}
    assert scan == epoch


def test_a_root_never_seen_before_is_named(start: Runner) -> None:
    found = start(
        """
        import sys
        HISTORY, OTHER, SLOT = [], [], {}

        class Config:
            last = None

        def test_known():
            HISTORY.append(Buffer(100))

        def test_known_again():
            HISTORY.append(Buffer(100))

        def test_other():
            OTHER.append(Buffer(100))

        def test_class():
            Config.last = Buffer(2**20)

        def test_new_global():
            sys.modules[__name__].LATE = [Buffer(2**20)]

        def test_known_still():
            HISTORY.append(Buffer(100))
        """
    )
    assert {name: found.finding(name)["holder"]["root"] for name in found.tests} == {
        "test_known": "test_it.HISTORY",
        "test_known_again": "test_it.HISTORY",
        "test_other": "test_it.OTHER",
        "test_class": "test_it.Config.last",
        "test_new_global": "test_it.LATE",
        "test_known_still": "test_it.HISTORY",
    }


@pytest.mark.parametrize(
    "leak",
    [
        "OTHER.append(b); HISTORY.append(b)",
        "item = {'loss': b}; HISTORY.append(item); OTHER.append(lambda: item)",
        "HISTORY.append(b); Config.seen.append(b)",
    ],
)
def test_a_known_and_a_new_root_are_both_named(start: Runner, leak: str, without_memory: Callable[[], Run]) -> None:
    found = start(
        f"""
        HISTORY, OTHER = [], []

        class Config:
            seen = []

        def test_known():
            HISTORY.append(Buffer(100))

        def test_both():
            b = Buffer(100)
            {leak}

        def test_both_again():
            b = Buffer(100)
            {leak}
        """
    )
    for name in ("test_both", "test_both_again"):
        (finding,) = found.tests[name]["findings"]
        roots = [holder["root"] for holder in (finding["holder"], *finding["other_holders"])]
        new = "test_it.Config.seen" if "Config" in leak else "test_it.OTHER"
        assert sorted(roots) == sorted(["test_it.HISTORY", new]), name
    assert told_by(without_memory()) == told_by(found)


def test_two_known_roots_are_both_named(start: Runner, without_memory: Callable[[], Run]) -> None:
    found = start(
        """
        HISTORY, OTHER = [], []

        def test_one():
            HISTORY.append(Buffer(100))

        def test_other():
            OTHER.append(Buffer(100))

        def test_both():
            b = Buffer(100)
            HISTORY.append(b)
            OTHER.append({"b": b})
        """
    )
    finding = found.finding("test_both")
    assert (finding["kind"], finding["count"]) == ("growing", 1)
    assert [_holder(holder) for holder in (finding["holder"], *finding["other_holders"])] == [
        ("module", "test_it.HISTORY", "test_it.HISTORY[*]"),
        ("module", "test_it.OTHER", "test_it.OTHER[*]['b']"),
    ]
    assert told_by(without_memory()) == told_by(found)


def test_a_slot_in_a_known_root_that_is_overwritten_stays_retained(
    start: Runner, without_memory: Callable[[], Run]
) -> None:
    found = start(
        """
        STATE = {"log": [], "best": None}

        def test_log():
            STATE["log"].append(Buffer(100))

        def test_best():
            STATE["best"] = Buffer(2**20)

        def test_best_again():
            STATE["best"] = Buffer(2**20)

        def test_once():
            STATE.setdefault("once", Buffer(2**20))
        """
    )
    kinds = {name: found.finding(name)["kind"] for name in found.tests}
    assert kinds == dict.fromkeys(kinds, "retained") | {"test_log": "growing"}
    assert told_by(without_memory()) == told_by(found)


def test_a_known_root_that_is_bound_to_a_new_object(start: Runner) -> None:
    found = start(
        """
        HISTORY = []

        def test_first():
            HISTORY.append(Buffer(2**20))

        def test_second():
            global HISTORY
            HISTORY = [Buffer(2**20)]

        def test_third():
            global HISTORY
            HISTORY = {"x": [Buffer(2**20)]}

        def test_fourth():
            HISTORY["x"].append(Buffer(2**20))
        """
    )
    kinds = {name: (found.finding(name)["kind"], found.holder(name)) for name in found.tests}
    assert kinds["test_second"] == ("retained", "test_it.HISTORY[0]")
    assert kinds["test_third"] == ("retained", "test_it.HISTORY['x'][0]")
    assert kinds["test_fourth"][0] == "growing"
    assert pattern_of(kinds["test_fourth"][1]) == "test_it.HISTORY['x'][*]"


def test_a_known_root_that_is_deleted(start: Runner) -> None:
    found = start(
        """
        import sys
        HISTORY, OTHER = [], []

        def test_first():
            HISTORY.append(Buffer(100))

        def test_moved():
            global HISTORY
            OTHER.append(HISTORY)
            del HISTORY
            HISTORY = None

        def test_elsewhere():
            OTHER[0].append(Buffer(100))

        def test_gone():
            globals().pop("HISTORY", None)
            OTHER.append(Buffer(100))
        """
    )
    assert pattern_of(found.holder("test_elsewhere")) == "test_it.OTHER[*][*]"
    assert pattern_of(found.holder("test_gone")) == "test_it.OTHER[*]"


def test_two_names_for_a_known_root(start: Runner, without_memory: Callable[[], Run]) -> None:
    """The list is held by two globals: to let go of either frees nothing, but there is one list to edit."""
    found = start(
        """
        HISTORY = []
        SAME = HISTORY

        def test_first():
            HISTORY.append(Buffer(100))

        def test_second():
            SAME.append(Buffer(100))
        """
    )
    assert told(found.tests["test_first"])[1][0][-1] == told(found.tests["test_second"])[1][0][-1]
    assert told_by(without_memory()) == told_by(found)


def test_instances_of_test_classes_that_pytest_keeps(start: Runner, without_memory: Callable[[], Run]) -> None:
    found = start(
        """
        class TestIt:
            def test_first(self):
                self.held = Buffer(2**20)

            def test_second(self):
                self.held = Buffer(2**20)

            def test_third(self):
                self.other = [Buffer(2**20)]
        """
    )
    assert told_by(without_memory()) == told_by(found)


def test_values_left_in_a_wider_fixture(start: Runner) -> None:
    found = start(
        """
        import pytest

        @pytest.fixture(scope="module")
        def store():
            return {"log": []}

        def test_first(store):
            store["log"].append(Buffer(100))

        def test_second(store):
            store["log"].append(Buffer(100))

        def test_third(store):
            store["best"] = Buffer(100)

        def test_last(store):
            pass
        """
    )
    first = found.finding("test_first")
    assert (first["kind"], first["holder"]["kind"]) == ("growing", "fixture")
    assert told(found.tests["test_second"])[1][0][-1] == told(found.tests["test_first"])[1][0][-1]
    assert found.finding("test_third")["kind"] == "retained"
    assert found.verdicts["test_last"] == "clean"


def test_with_workers_the_same_is_told(start: Runner) -> None:
    pytest.importorskip("xdist")
    source = """
        import pytest
        HISTORY, SLOT = [], {}

        @pytest.mark.parametrize("i", range(4))
        def test_list(i):
            HISTORY.append(Buffer(100))

        @pytest.mark.parametrize("i", range(4))
        def test_slot(i):
            SLOT["x"] = Buffer(2**20)
    """
    here = start(source, apart=True)
    there = start("", "-n1", apart=True)
    assert {name: told(test) for name, test in there.tests.items()} == {
        name: told(test) for name, test in here.tests.items()
    }


SETTLE = """
import sys

def pytest_gpuleak_settle(config, nodeid):
    sys.modules["test_it"].HISTORY.clear()
"""


def test_a_hook_that_clears_a_known_root_clears_every_test(start: Runner, pytester: pytest.Pytester) -> None:
    """A root that the hook clears never becomes a culprit: what it held was gone before it was searched for."""
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(SETTLE)
    found = start(
        """
        HISTORY, OTHER = [], []

        def test_cleared():
            HISTORY.append(Buffer(2**20))

        def test_other():
            OTHER.append(Buffer(2**20))

        def test_cleared_again():
            HISTORY.append(Buffer(2**20))
        """
    )
    assert found.verdicts == {"test_cleared": "clean", "test_other": "leaked", "test_cleared_again": "clean"}


HOOK_IN_PART = """
import sys

def pytest_gpuleak_settle(config, nodeid):
    state = sys.modules["test_it"].STATE
    state["cache"].clear()
"""


def test_a_hook_that_clears_a_part_of_a_known_root(start: Runner, pytester: pytest.Pytester) -> None:
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(HOOK_IN_PART)
    found = start(
        """
        STATE = {"log": [], "cache": []}

        def test_log():
            STATE["log"].append(Buffer(100))

        def test_cache():
            STATE["cache"].append(Buffer(100))
        """
    )
    assert found.verdicts == {"test_log": "leaked", "test_cache": "clean"}


def test_a_thread_of_the_tests_own_that_lets_go_late_of_a_known_root(start: Runner) -> None:
    found = start(
        """
        import threading, time
        HISTORY = []

        def test_leaks():
            HISTORY.append(Buffer(100))

        def test_lets_go_late():
            HISTORY.append(Buffer(2**20))
            buffer_id = id(HISTORY[-1])

            def let_go():
                time.sleep(0.03)
                HISTORY[:] = [buffer for buffer in HISTORY if id(buffer) != buffer_id]

            threading.Thread(target=let_go).start()
        """
    )
    assert found.verdicts == {"test_leaks": "leaked", "test_lets_go_late": "clean"}


def test_the_memory_of_culprits_keeps_nothing_alive(start: Runner) -> None:
    found = start(
        """
        import gc, weakref, pytest

        class Log(list):
            pass

        HISTORY = Log()

        @pytest.fixture(scope="module")
        def store():
            return Log()

        def test_first():
            HISTORY.append(Buffer(100))

        def test_second():
            HISTORY.append(Buffer(100))

        def test_fixture(store):
            store.append(Buffer(100))

        def test_fixture_again(store):
            store.append(Buffer(100))

        def test_deleted(store):
            global HISTORY
            references = [weakref.ref(HISTORY), *map(weakref.ref, HISTORY)]
            assert len(references) == 7
            gc.disable()
            try:
                del HISTORY
                assert not any(reference() for reference in references)
            finally:
                gc.enable()

        def test_last():
            pass
        """,
        apart=True,  # pytester's recorder of hook calls would hold the list
    )
    found.result.assert_outcomes(passed=6)
    assert found.verdicts["test_deleted"] == "clean"


def test_a_fixture_that_has_been_finalised_is_not_held(start: Runner) -> None:
    found = start(
        """
        import gc, weakref, pytest

        class Log(list):
            pass

        GONE = []

        class TestIt:
            @pytest.fixture(scope="class")
            def store(self):
                value = Log()
                GONE.append(weakref.ref(value))
                return value

            def test_first(self, store):
                store.append(Buffer(100))

            def test_second(self, store):
                store.append(Buffer(100))

            def test_last(self, store):
                pass

        def test_afterwards():
            gc.collect()
            assert len(GONE) == 1
            assert GONE[0]() is None
        """
    )
    found.result.assert_outcomes(passed=4)


FORGETFUL = """
from pytest_gpuleak.explain.lasting_roots import LastingRoots


LastingRoots.reach = lambda *_: None
LastingRoots.reach_up = lambda *_: None
"""


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_torch_leaks_in_a_series_are_told_as_each_was_the_first_time(start: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    source = """
        import pytest, torch, torch.nn as nn
        HISTORY, SLOT = [], {}

        def loss(): HISTORY.append((torch.ones(4, requires_grad=True) * 2).sum())
        def optimizer():
            m = nn.Linear(4, 4)
            o = torch.optim.Adam(m.parameters())
            m(torch.ones(2, 4)).sum().backward()
            o.step()
            HISTORY.append(o)
        def slot(): SLOT["x"] = torch.ones(2**18)
        def hooked():
            t = torch.ones(4, requires_grad=True)
            t.register_hook(lambda g: HISTORY.append(g))
            (t * 3).sum().backward()

        LEAKS = [loss, optimizer, slot, hooked]

        @pytest.mark.parametrize("again", [1, 2])
        @pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
        def test_it(leak, again):
            leak()
    """
    together = told_by(start(source, apart=True))
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(FORGETFUL)
    assert told_by(start("", apart=True)) == together
    # The second replaces what the first has left in the slot, and adds nothing.
    assert [together[f"test_it[slot-{again}]"][0] for again in (1, 2)] == ["leaked", "noted"]
    for name, verdict in together.items():
        assert verdict == together[name.replace("-2]", "-1]")] or name == "test_it[slot-2]", name

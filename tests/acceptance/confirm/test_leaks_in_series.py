"""Leaks in a series are told as each was the first time, and no verdict depends on which roots are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.paths import pattern_of
from tests.acceptance.confirm.conftest import forget_roots

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Json, Run, Runner

pytestmark = pytest.mark.slow


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
            forget_roots(patch)
            return start("")

    return start_without


def told_by(found: Run) -> dict[str, Any]:
    """What a report says about each test."""
    return {name: told(test) for name, test in found.tests.items()}


SHAPES = {
    "list": "HISTORY.append(Buffer(100))",
    "nested": "NESTED['runs'][0]['losses'].append({'loss': Buffer(100)})",
    "lru_cache": "mask(mask.cache_info().currsize)",
    "closure": "b = Buffer(100); CALLS.append(lambda: b)",
    "cycle": "c = {'b': Buffer(100)}; c['self'] = c; CYCLES.append(c)",
    "slot": "LATEST['model'] = Buffer(2**20)",
}
BOTH = {
    "list": "OTHER.append(b); KNOWN.append(b)",
    "closure": "item = {'loss': b}; KNOWN.append(item); OTHERS.append(lambda: item)",
    "class": "KNOWN.append(b); Config.seen.append(b)",
}
SERIES = (
    """
    import functools, gc, sys, weakref, pytest

    HISTORY, CALLS, CYCLES, LATEST = [], [], [], {}
    NESTED = {"runs": [{"losses": []}]}

    @functools.lru_cache(maxsize=None)
    def mask(i):
        return Buffer(300)
"""
    + "".join(
        f"""
    def test_shape_{shape}_{number}():
        {leak}
    """
        for shape, leak in SHAPES.items()
        for number in (1, 2)
    )
    + """
    KNOWN, OTHER, OTHERS = [], [], []

    class Config:
        seen = []
        last = None

    def test_known():
        KNOWN.append(Buffer(100))
"""
    + "".join(
        f"""
    def test_both_{both}_{number}():
        b = Buffer(100)
        {leak}
    """
        for both, leak in BOTH.items()
        for number in (1, 2)
    )
    + """
    FIRST, SECOND = [], []

    def test_two_first():
        FIRST.append(Buffer(100))

    def test_two_second():
        SECOND.append(Buffer(100))

    def test_two_both():
        b = Buffer(100)
        FIRST.append(b)
        SECOND.append({"b": b})

    STATE = {"log": [], "best": None}

    def test_state_log():
        STATE["log"].append(Buffer(100))

    def test_state_best():
        STATE["best"] = Buffer(2**20)

    def test_state_best_again():
        STATE["best"] = Buffer(2**20)

    def test_state_once():
        STATE.setdefault("once", Buffer(2**20))

    NAMED = []
    SAME = NAMED

    def test_named_first():
        NAMED.append(Buffer(100))

    def test_named_second():
        SAME.append(Buffer(100))

    class TestIt:
        def test_first(self):
            self.held = Buffer(2**20)

        def test_second(self):
            self.held = Buffer(2**20)

        def test_third(self):
            self.other = [Buffer(2**20)]
"""
)

OTHER_SERIES = """
    import gc, sys, threading, time, weakref, pytest

    LIST = []

    @pytest.mark.parametrize("i", range(4))
    def test_four(i):
        LIST.append(Buffer(100 + i))

    class Config:
        last = None

    HISTORY, OTHER = [], []

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

    BOUND = []

    def test_bound_first():
        BOUND.append(Buffer(2**20))

    def test_bound_second():
        global BOUND
        BOUND = [Buffer(2**20)]

    def test_bound_third():
        global BOUND
        BOUND = {"x": [Buffer(2**20)]}

    def test_bound_fourth():
        BOUND["x"].append(Buffer(2**20))

    DELETED, KEEPER = [], []

    def test_deleted_first():
        DELETED.append(Buffer(100))

    def test_deleted_moved():
        global DELETED
        KEEPER.append(DELETED)
        del DELETED
        DELETED = None

    def test_deleted_elsewhere():
        KEEPER[0].append(Buffer(100))

    def test_deleted_gone():
        globals().pop("DELETED", None)
        KEEPER.append(Buffer(100))

    @pytest.fixture(scope="module")
    def store():
        return {"log": []}

    def test_fixture_first(store):
        store["log"].append(Buffer(100))

    def test_fixture_second(store):
        store["log"].append(Buffer(100))

    def test_fixture_third(store):
        store["best"] = Buffer(100)

    def test_fixture_last(store):
        pass

    class Log(list):
        pass

    GONE = []

    class TestIt:
        @pytest.fixture(scope="class")
        @classmethod
        def log(cls):
            value = Log()
            GONE.append(weakref.ref(value))
            return value

        def test_first(self, log):
            log.append(Buffer(100))

        def test_second(self, log):
            log.append(Buffer(100))

        def test_last(self, log):
            pass

    def test_a_fixture_that_has_been_finalised_is_not_held():
        gc.collect()
        assert len(GONE) == 1
        assert GONE[0]() is None

    THREAD = []

    def test_thread_leaks():
        THREAD.append(Buffer(100))

    def test_thread_lets_go_late():
        THREAD.append(Buffer(2**20))
        buffer_id = id(THREAD[-1])

        def let_go():
            time.sleep(0.03)
            THREAD[:] = [buffer for buffer in THREAD if id(buffer) != buffer_id]

        threading.Thread(target=let_go).start()
"""


def roots_of(test: Json) -> list[str]:
    (finding,) = test["findings"]
    return sorted(holder["root"] for holder in (finding["holder"], *finding["other_holders"]))


def test_a_series_is_told_as_each_was_the_first_time_with_and_without_known_roots(
    start: Runner, without_memory: Callable[[], Run]
) -> None:
    found = start(SERIES)
    told_with_memory = told_by(found)
    # The second replaces what the first has left in the slot, and adds nothing.
    assert [told_with_memory[f"test_shape_slot_{number}"][0] for number in (1, 2)] == ["leaked", "noted"]
    for name, verdict in told_with_memory.items():
        if name.startswith("test_shape"):
            assert verdict == told_with_memory[name[:-1] + "1"] or name == "test_shape_slot_2", name

    new = {"list": "test_it.OTHER", "closure": "test_it.OTHERS", "class": "test_it.Config.seen"}
    for both, root in new.items():
        for number in (1, 2):
            assert roots_of(found.tests[f"test_both_{both}_{number}"]) == sorted(["test_it.KNOWN", root]), both

    finding = found.finding("test_two_both")
    assert (finding["kind"], finding["count"]) == ("growing", 1)
    assert [_holder(holder) for holder in (finding["holder"], *finding["other_holders"])] == [
        ("module", "test_it.FIRST", "test_it.FIRST[*]"),
        ("module", "test_it.SECOND", "test_it.SECOND[*]['b']"),
    ]

    kinds = {name: found.finding(name)["kind"] for name in found.tests if name.startswith("test_state")}
    assert kinds == dict.fromkeys(kinds, "retained") | {"test_state_log": "growing"}

    # The list is held by two globals: to let go of either frees nothing, but there is one list to edit.
    assert told(found.tests["test_named_first"])[1][0][-1] == told(found.tests["test_named_second"])[1][0][-1]

    assert told_by(without_memory()) == told_with_memory


def test_holders_in_a_series(start: Runner) -> None:
    found = start(OTHER_SERIES)
    for i in range(4):
        finding = found.finding(f"test_four[{i}]")
        told_of_it = [finding[name] for name in ("kind", "count", "bytes", "bytes_per_run", "other_holders")]
        assert told_of_it == ["growing", 1, 100 + i, 100 + i, []]
        # The index is the array's own: each leak runs three times, and that of any of its runs is seen.
        assert finding["holder"]["text"] in [f"test_it.LIST[{3 * i + run}]" for run in range(3)]
        assert finding["tensors"][0]["created"]["code"] == "LIST.append(Buffer(100 + i))"

    # A root never seen before is named.
    roots = {
        "test_known": "test_it.HISTORY",
        "test_known_again": "test_it.HISTORY",
        "test_other": "test_it.OTHER",
        "test_class": "test_it.Config.last",
        "test_new_global": "test_it.LATE",
        "test_known_still": "test_it.HISTORY",
    }
    assert {name: found.finding(name)["holder"]["root"] for name in roots} == roots

    # A known root that is bound to a new object.
    bound = {name: (found.finding(name)["kind"], found.holder(name)) for name in found.tests if "bound" in name}
    assert bound["test_bound_second"] == ("retained", "test_it.BOUND[0]")
    assert bound["test_bound_third"] == ("retained", "test_it.BOUND['x'][0]")
    assert bound["test_bound_fourth"][0] == "growing"
    assert pattern_of(bound["test_bound_fourth"][1]) == "test_it.BOUND['x'][*]"

    # A known root that is deleted.
    assert pattern_of(found.holder("test_deleted_elsewhere")) == "test_it.KEEPER[*][*]"
    assert pattern_of(found.holder("test_deleted_gone")) == "test_it.KEEPER[*]"

    # Values left in a wider fixture.
    first = found.finding("test_fixture_first")
    assert (first["kind"], first["holder"]["kind"]) == ("growing", "fixture")
    assert told(found.tests["test_fixture_second"])[1][0][-1] == told(found.tests["test_fixture_first"])[1][0][-1]
    assert found.finding("test_fixture_third")["kind"] == "retained"
    assert found.verdicts["test_fixture_last"] == "clean"

    # A fixture that has been finalised is not held, and a thread lets go late of a known root.
    assert "failed" not in found.result.parseoutcomes()
    assert (found.verdicts["test_thread_leaks"], found.verdicts["test_thread_lets_go_late"]) == ("leaked", "clean")


def test_the_same_is_told_whatever_ran_before_and_in_scan_mode(start: Runner) -> None:
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
    together = told_by(start(source))
    backwards = [f"test_it.py::{name}" for name in reversed(together)]
    assert told_by(start("", *backwards)) == together
    assert told_by(start("", "--gpu-leak-scan=scan")) == together
    for name in ("test_inner_list", "test_slot"):  # the others have been the first of a run
        assert told_by(start("", f"test_it.py::{name}")) == {name: together[name]}


SETTLE = """
import sys

def pytest_gpuleak_settle(config, nodeid):
    tests = sys.modules["test_it"]
    tests.HISTORY.clear()
    tests.STATE["cache"].clear()
"""


def test_a_hook_that_clears_a_known_root_or_a_part_of_one_clears_every_test(
    start: Runner, pytester: pytest.Pytester
) -> None:
    """A root that the hook clears never becomes a culprit: what it held was gone before it was searched for."""
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(SETTLE)
    found = start(
        """
        HISTORY, OTHER = [], []
        STATE = {"log": [], "cache": []}

        def test_cleared():
            HISTORY.append(Buffer(2**20))

        def test_other():
            OTHER.append(Buffer(2**20))

        def test_cleared_again():
            HISTORY.append(Buffer(2**20))

        def test_log():
            STATE["log"].append(Buffer(100))

        def test_cache():
            STATE["cache"].append(Buffer(100))
        """
    )
    assert found.verdicts == {
        "test_cleared": "clean",
        "test_other": "leaked",
        "test_cleared_again": "clean",
        "test_log": "leaked",
        "test_cache": "clean",
    }


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


FORGETFUL = """
from pytest_gpuleak.explain.lasting_roots import LastingRoots, Reached


LastingRoots.reach = lambda *_: Reached({}, [])
LastingRoots.reach_up = lambda *_: {}
"""


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_torch_leaks_in_a_series_are_told_as_each_was_the_first_time(start: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    source = """
        import pytest, torch
        HISTORY, SLOT = [], {}

        def loss(): HISTORY.append((torch.ones(4, requires_grad=True) * 2).sum())
        def slot(): SLOT["x"] = torch.ones(2**18)
        def hooked():
            t = torch.ones(4, requires_grad=True)
            t.register_hook(lambda g: HISTORY.append(g))
            (t * 3).sum().backward()

        LEAKS = [loss, slot, hooked]

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

"""The rules of the collector that epochs rest on, and what is done where one does not hold."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.heap import collector, collector_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Runner

pytestmark = pytest.mark.interpreter

LEAKS = """
    import gc

    KEPT, SLOT = [], {}

    def make_ring():
        array = Buffer(2**21)
        array.itself = array

    def test_grows():
        KEPT.append(Buffer(4096))

    def test_fills_a_slot():
        SLOT["array"] = Buffer(2**21)

    def test_leaves_a_ring():
        make_ring()

    def test_collects():
        KEPT.append(Buffer(100))
        gc.collect()

    def test_is_clean():
        Buffer(4096)
"""


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def ring() -> weakref.ref[Ring]:
    return weakref.ref(Ring())


@pytest.fixture
def examined() -> Iterator[Callable[[], str]]:
    """The self-test, made again."""

    def examine() -> str:
        collector_rules.why_no_epochs.cache_clear()
        return collector_rules.why_no_epochs()

    yield examine
    collector_rules.why_no_epochs.cache_clear()


@pytest.mark.skipif(not collector.epochs_supported(), reason="no epochs on this interpreter")
def test_this_interpreter_passes(examined: Callable[[], str]) -> None:
    frozen, enabled, counted = gc.get_freeze_count(), gc.isenabled(), collector_rules.take_frozen_before()
    assert examined() == ""
    assert gc.get_freeze_count() == 0
    assert gc.isenabled() is enabled
    assert collector_rules.take_frozen_before() == frozen
    assert collector_rules.take_frozen_before() == 0
    del counted


def test_a_young_collection_frees_young_garbage_each_time() -> None:
    """Of CPython 3.14.0 to 3.14.4 every increment: the first one of a round only marks."""
    gc.disable()
    try:
        for _ in range(4):
            garbage = ring()
            collector.collect_recent()
            assert garbage() is None
    finally:
        gc.enable()


def test_an_unseen_collection_frees_garbage_and_calls_no_callback() -> None:
    told: list[str] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        told.append(phase)

    class AddsCallback(Ring):
        def __del__(self) -> None:
            gc.callbacks.append(later)

    def later(phase: str, info: dict[str, int]) -> None:
        """Be added by garbage while it is collected."""

    adding = AddsCallback()
    adding.itself = adding
    del adding
    gc.disable()
    before = list(gc.callbacks)
    gc.callbacks.append(callback)
    try:
        garbage = ring()
        collector.collect_unseen()
        assert garbage() is None
        assert told == []
        assert gc.callbacks == [*before, callback, later]
        gc.collect(0)
        assert told == ["start", "stop"]
    finally:
        gc.callbacks[:] = before
        gc.enable()


@pytest.mark.skipif(not collector.epochs_supported(), reason="no epochs on this interpreter")
def test_full_collections_of_a_frozen_and_of_a_thawed_heap() -> None:
    """What the self-test leaves out, since a full collection of the whole heap takes too long."""
    gc.disable()
    try:
        frozen = ring()
        gc.freeze()
        young, survivor = ring(), Ring()
        for _ in range(3):
            gc.collect(1)  # it may be in any generation by now
        reference = weakref.ref(survivor)
        del survivor
        gc.collect()
        assert young() is None
        assert reference() is None
        assert frozen() is not None
        gc.unfreeze()
        gc.collect()
        assert frozen() is None
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.skipif(not collector.epochs_supported(), reason="no epochs on this interpreter")
def test_a_callback_may_thaw_and_freeze() -> None:
    frozen: list[weakref.ref[Ring]] = []

    def call(phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            (gc.unfreeze if phase == "start" else gc.freeze)()

    gc.disable()
    gc.callbacks.append(call)
    try:
        for _ in range(3):  # the incremental collector changes its spaces with each
            frozen.append(ring())
            gc.freeze()
            kept = Ring()
            gc.collect()
            assert frozen[-1]() is None
            assert not any(found is kept for found in gc.get_objects())
            young = Ring()
            assert any(found is young for found in gc.get_objects())
            collector.collect_recent()
            assert not any(found is kept for found in gc.get_objects())
            assert any(found is young for found in gc.get_objects())
    finally:
        gc.callbacks.remove(call)
        gc.unfreeze()
        gc.enable()


BROKEN: dict[str, tuple[str, str, Any]] = {
    "freeze": ("does not hide", "freeze", lambda: None),
    "count": ("does not hide", "get_freeze_count", lambda: 0),
    "young": ("does not show what is born", "get_objects", list),
    "collect": ("does not free young garbage", "collect", lambda generation=2: 0),
    "thaw": ("does not thaw", "unfreeze", lambda: None),
    "raises": ("raised ValueError", "get_objects", lambda: int("none")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_rule_that_does_not_hold_is_named(
    case: str, examined: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    why, name, function = BROKEN[case]
    if not collector.epochs_supported():
        pytest.skip("no epochs on this interpreter")
    with monkeypatch.context() as patch:
        patch.setattr(collector_rules, name, function)
        assert why in examined()
    gc.unfreeze()


def test_a_young_collection_that_looks_at_what_is_frozen_is_named(
    examined: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def collect(generation: int = 2) -> int:
        gc.unfreeze()
        return gc.collect()

    if not collector.epochs_supported():
        pytest.skip("no epochs on this interpreter")
    monkeypatch.setattr(collector_rules, "collect", collect)
    assert "looks at what is frozen" in examined()


def unknown_version(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(collector_rules, "is_free_threaded", bool)
    patch.setattr(sys, "version_info", (3, 16, 0, "final", 0))
    return "Python 3.16 is newer"


def free_threaded(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(sys, "version", "3.14.2 free-threading build (main)")
    return "in a free-threaded build it has no generations"


def free_threaded_by_flags(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(sys, "abiflags", "td", raising=False)
    return "in a free-threaded build it has no generations"


def other_interpreter(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(sys, "implementation", type(sys.implementation)(**{**vars(sys.implementation), "name": "graalpy"}))
    return "graalpy has a collector of its own"


def failing_self_test(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(collector_rules, "broken_rule", lambda: "a rule does not hold")
    return "a rule does not hold"


@pytest.mark.parametrize("simulate", [unknown_version, free_threaded, free_threaded_by_flags, other_interpreter])
def test_other_interpreters_have_no_epochs(
    simulate: Callable[[pytest.MonkeyPatch], str], examined: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def freeze() -> None:
        raise AssertionError("called")

    with monkeypatch.context() as patch:
        patch.setattr(collector_rules, "freeze", freeze)
        assert simulate(patch) in examined()


@pytest.mark.slow
def test_a_self_test_that_fails_has_the_heap_scanned_and_the_same_found(
    run: Runner, examined: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    collector_rules.why_no_epochs.cache_clear()
    monkeypatch.setattr(collector_rules, "broken_rule", lambda: "a rule does not hold")
    frozen = gc.get_freeze_count()
    found = run(LEAKS)
    # CPython 3.12 alone freezes immortal objects in each full collection (`update_refs`, Modules/gcmodule.c).
    immortal = collector_rules.INTERPRETERS_OWN if sys.version_info[:2] == (3, 12) else 0
    assert gc.get_freeze_count() <= frozen + immortal
    found.result.stdout.fnmatch_lines(["gpu-leak: scan (this interpreter's collector has no epochs: *); fails on*"])
    told = {name: (test["verdict"], [one["kind"] for one in test["findings"]]) for name, test in found.tests.items()}
    assert told == {
        "test_grows": ("leaked", ["growing"]),
        "test_fills_a_slot": ("leaked", ["retained"]),
        "test_leaves_a_ring": ("noted", ["cycle"]),
        "test_collects": ("leaked", ["growing"]),
        "test_is_clean": ("clean", []),
    }

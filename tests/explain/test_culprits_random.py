"""Random sequences of leaks: what known culprits say is what a search of the whole heap says, or nothing."""

from __future__ import annotations

import collections
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.engine.detect.epochs import EpochDetector
from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.known_culprits import Culprits
from tests.support.standin import Buffer, StandInArrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.explain.explanation import Explanation

pytestmark = [pytest.mark.interpreter, pytest.mark.slow]


FILE = "/project/culprit_app.py"


class Store:
    """An object with attributes, held by a global."""


class Slotted:
    __slots__ = ("content",)
    content: object


def looped(value: object) -> object:
    loop: dict[str, object] = {"value": value}
    loop["self"] = loop
    return loop


def slotted(value: object) -> object:
    box = Slotted()
    box.content = value
    return box


WRAP: dict[str, Callable[[Any], Any]] = {
    "bare": lambda value: value,
    "list": lambda value: [value],
    "dict": lambda value: {"loss": value},
    "tuple": lambda value: (value, 1),
    "closure": lambda value: lambda: value,
    "object": lambda value: types.SimpleNamespace(loss=value),
    "slots": slotted,
    "loop": looped,
}

PUT: dict[str, Callable[[Any, Any], None]] = {
    "list": lambda app, value: app.HISTORY.append(value),
    "other list": lambda app, value: app.OTHER.append(value),
    "alias": lambda app, value: app.SAME.append(value),
    "dict": lambda app, value: app.CACHE.__setitem__(len(app.CACHE), value),
    "slot": lambda app, value: app.CACHE.__setitem__("slot", value),
    "deque": lambda app, value: app.RECENT.append(value),
    "attribute": lambda app, value: setattr(app.STORE, f"a{len(vars(app.STORE))}", value),
    "nested": lambda app, value: app.NESTED["a"]["b"].append(value),
    "global": lambda app, value: setattr(app, "LAST", value),
    "rebound": lambda app, value: setattr(app, "HISTORY", [value]),
    "class": lambda app, value: app.Config.seen.append(value),
    "beside": lambda app, value: app.NESTED["a"].__setitem__("c", value),
}

leak = st.tuples(st.sampled_from(sorted(WRAP)), st.lists(st.sampled_from(sorted(PUT)), min_size=1, max_size=3))
tests = st.lists(st.lists(leak, min_size=1, max_size=3), min_size=2, max_size=5)


def new_module() -> Any:
    module: Any = types.ModuleType("culprit_app")
    module.__file__ = FILE
    config = type("Config", (), {"seen": [], "__module__": "culprit_app"})
    vars(module).update(HISTORY=[], OTHER=[], CACHE={}, RECENT=collections.deque(maxlen=4), STORE=Store())
    vars(module).update(NESTED={"a": {"b": []}}, SAME=None, LAST=None, Config=config)
    module.SAME = module.OTHER
    return module


def texts(explanations: list[Explanation]) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """What each explanation says of the holders."""
    for found in explanations:
        yield found.holder.kind, found.holder.root, found.holder.text, tuple(other.text for other in found.others)


def run_test(app: Any, leaks: list[tuple[str, list[str]]]) -> None:
    """What a test leaves behind: buffers in containers, each put in one place or in several."""
    for wrapping, places in leaks:
        value = WRAP[wrapping](Buffer())
        for place in places:
            PUT[place](app, value)


def judge(detector: EpochDetector, culprits: Culprits) -> bool:
    """Compare the known culprits' answer with the whole heap's, and remember the latter; whether there was one."""
    arrays = detector.look()
    if not arrays:
        return False
    own = {id(arrays), id(sys._getframe())}
    known = culprits.recognise(arrays, own)
    with detector.whole_heap():
        searched = explain(arrays, ignore=own, remember=culprits.remember)
    assert known is None or list(texts(known)) == list(texts(searched))
    return known is not None


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tests)
def test_known_culprits_say_what_a_search_of_the_whole_heap_says(sequence: list[list[tuple[str, list[str]]]]) -> None:
    app = sys.modules["culprit_app"] = new_module()
    detector = EpochDetector([StandInArrays()])
    culprits = Culprits()
    detector.start()
    try:
        for leaks in sequence:
            detector.open()
            run_test(app, leaks)
            judge(detector, culprits)
            detector.close()
    finally:
        detector.stop()
        del sys.modules["culprit_app"]
        vars(app).clear()


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tests)
def test_the_users_globals_say_what_a_search_of_the_whole_heap_says(
    sequence: list[list[tuple[str, list[str]]]],
) -> None:
    app = sys.modules["culprit_app"] = new_module()
    detector = EpochDetector([StandInArrays()])
    detector.start()
    try:
        for leaks in sequence:
            detector.open()
            run_test(app, leaks)
            judge(detector, Culprits(FILE.__eq__))
            detector.close()
    finally:
        detector.stop()
        del sys.modules["culprit_app"]
        vars(app).clear()


def recognise_by_globals(*changes: Callable[[Any], object]) -> list[Explanation] | None:
    """What the user's globals say of an array that each change leaves in an epoch of its own, without a culprit known."""
    app = sys.modules["culprit_app"] = new_module()
    detector = EpochDetector([StandInArrays()])
    detector.start()
    try:
        met: list[int] = []
        for change in changes:
            detector.open()
            change(app)
            arrays = detector.look()
            met += map(id, arrays)
            known = Culprits(FILE.__eq__).recognise(
                arrays, {id(arrays)}, older=[one for one in met if one not in map(id, arrays)]
            )
            arrays.clear()
            detector.close()
    finally:
        detector.stop()
        del sys.modules["culprit_app"]
        vars(app).clear()
    return known


def test_a_global_that_never_leaked_before_is_recognised() -> None:
    found = recognise_by_globals(lambda app: app.HISTORY.append({"loss": Buffer()}))
    assert found is not None
    assert list(texts(found)) == [("module", "culprit_app.HISTORY", "culprit_app.HISTORY[0]['loss']", ())]


def test_what_an_earlier_run_left_is_found_below_the_global() -> None:
    found = recognise_by_globals(
        lambda app: app.NESTED["a"]["b"].append(Buffer()), lambda app: app.NESTED["a"]["b"].append((Buffer(), 1))
    )
    assert found is not None
    assert sorted(one.holder.text for one in found) == [
        "culprit_app.NESTED['a']['b'][0]", "culprit_app.NESTED['a']['b'][1][0]"
    ]  # fmt: skip


ELSEWHERE: list[Any] = []


def test_a_list_that_another_holds_too_is_not_taken_for_explained() -> None:
    """The second holder, of an old list and not of the array, is known to a search of the whole heap alone."""

    def alias(app: Any) -> None:
        ELSEWHERE.append(app.HISTORY)

    try:
        assert recognise_by_globals(alias, lambda app: app.HISTORY.append(Buffer())) is None
    finally:
        ELSEWHERE.clear()


def test_what_earlier_runs_left_and_nothing_found_holds_is_not_explained() -> None:
    def elsewhere(_app: Any) -> None:
        ELSEWHERE.append(Buffer())

    try:
        assert recognise_by_globals(elsewhere, lambda app: app.HISTORY.append(Buffer())) is None
    finally:
        ELSEWHERE.clear()


def test_what_is_known_is_recognised() -> None:
    """That the property holds is no accident of an answer that never comes."""
    app = sys.modules["culprit_app"] = new_module()
    detector = EpochDetector([StandInArrays()])
    culprits = Culprits()
    detector.start()
    answers: dict[tuple[str, str], list[bool]] = {}
    try:
        for place in ("list", "nested", "class", "slot"):
            for wrapping in WRAP:
                for _ in range(2):
                    detector.open()
                    run_test(app, [(wrapping, [place])])
                    answers.setdefault((place, wrapping), []).append(judge(detector, culprits))
                    detector.close()
    finally:
        detector.stop()
        del sys.modules["culprit_app"]
        vars(app).clear()
    assert [case for case, (_, again) in answers.items() if not again] == []

"""What a known root leads to is no garbage: the heap is not collected for it, even where others hold it too."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.engine.detect.young_arrays import make_young

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Runner

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(make_young() is None, reason="this interpreter's collector cannot be told what is young"),
]

HEAD = """
    import pytest, types
    from library import store

    OTHERS = [types.SimpleNamespace(last=None) for _ in range(40)]

"""


@pytest.fixture(autouse=True)
def library(install: Callable[[dict[str, str]], None]) -> None:
    """An installed library."""
    install({"__init__": "", "store": "kept, old = [], [dict() for _ in range(40)]\n"})


@pytest.fixture(autouse=True)
def all_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """No suspect is searched for by itself, but to teach."""
    monkeypatch.setattr(importlib.import_module("pytest_gpuleak.engine.waiting"), "SEARCHES_AT_ONCE", 0)


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that have collected the whole heap while a suspect was checked."""
    steps = importlib.import_module("pytest_gpuleak.engine.settle.steps")
    found: list[str] = []
    original = steps.collect

    def noted(generation: int) -> int:
        found.append(f"generation {generation}")
        collected: int = original(generation)
        return collected

    monkeypatch.setattr(steps, "collect", noted)
    return found


def test_one_in_a_series_teaches_its_holder(run: Runner, searches: list[int], collections: list[str]) -> None:
    found = run(
        HEAD
        + """
    @pytest.mark.parametrize("number", range(12))
    def test_it(number):
        store.kept.append(Buffer())
    """
    )
    assert set(found.verdicts.values()) == {"leaked"}
    assert {finding["holder"]["text"][:18] for test in found.report["tests"] for finding in test["findings"]} == {
        "library.store.kept"
    }
    assert searches == [2, 2 * 3]  # the fourth; at the end the three before it, since the next were recognised
    assert len(collections) == 4


def test_what_another_holds_too_needs_no_collection_and_is_explained_late(
    run: Runner, searches: list[int], collections: list[str]
) -> None:
    found = run(
        HEAD
        + """
    @pytest.mark.parametrize("number", range(12))
    def test_it(number):
        buffer = Buffer()
        store.kept.append(buffer)
        if number > 3:
            OTHERS.pop().last = buffer
            store.old.append(store.old.pop(0))
            store.old[-1]["last"] = [buffer]
    """
    )
    assert set(found.verdicts.values()) == {"leaked"}
    assert len(collections) == 4
    assert searches == [2, 2 * 11]
    texts = str([finding["holder"] for finding in found.tests["test_it[11]"]["findings"]])
    assert "library.store.kept[" in texts


def test_what_takes_the_place_of_garbage_below_a_known_root_does_not_grow(run: Runner) -> None:
    """The value before waits in a cycle with an old object, to which no root leads: then the heap is collected after all."""
    found = run(
        HEAD
        + """
    @pytest.mark.parametrize("number", range(5))
    def test_that_leaks(number):
        store.kept.append(Buffer())

    @pytest.mark.parametrize("number", range(3))
    def test_that_replaces(number):
        if type(store.kept[0]) is not dict:
            store.kept.insert(0, {})
        old = OTHERS.pop()
        old.last = types.SimpleNamespace(buffer=Buffer(900), itself=old)
        store.kept[0]["last"] = old
    """
    )
    assert {found.verdicts[f"test_that_replaces[{number}]"] for number in range(3)} <= {"noted", "clean"}
    assert {found.verdicts[f"test_that_leaks[{number}]"] for number in range(5)} == {"leaked"}

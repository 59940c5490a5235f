"""The reference that each run adds, from the paths of two runs."""

from __future__ import annotations

import pytest

from pytest_gpuleak.engine.judge.growth import growing_reference
from pytest_gpuleak.model.findings import Holder, PathStep


def held(*steps: tuple[str, str], root: str = "app.STATE") -> Holder:
    return Holder("module", root, root, tuple(PathStep(*step) for step in steps))


def log(index: int, key: str = "log") -> Holder:
    return held((f"['{key}']", "dict"), (f"[{index}]", "list"), (".loss", "app.Step"))


def test_the_item_that_the_next_run_adds_is_the_place() -> None:
    assert growing_reference(log(0), [log(0)], [log(1)]) == 1


def test_of_several_containers_of_the_first_run_each_is_compared_with_itself() -> None:
    first = [log(0, "a"), log(0, "b")]
    assert growing_reference(first[0], first, [log(1, "b"), log(1, "a")]) == 1


def test_a_new_object_brings_the_references_below_it() -> None:
    hooks = [
        held((f"[{hook}]", "dict"), (".taps", "app.Probe"), (f"[{tap}]", "list"))
        for hook, tap in ((0, 0), (0, 1), (1, 0))
    ]
    assert growing_reference(hooks[0], hooks[:1], hooks[1:]) == 0


def test_a_chain_and_an_attribute_more_are_told() -> None:
    older = held((".previous", "app.Node"), (".value", "app.Node"))
    assert growing_reference(older, [older], [held((".value", "app.Node"))]) == 0
    assert growing_reference(held((".a_0", "app.Net")), [held((".a_0", "app.Net"))], [held((".a_1", "app.Net"))]) == 0


@pytest.mark.parametrize(
    "added",
    [
        log(0),
        held((".loss", "app.Step")),
        held(("['log']", "app.Other"), root="app.OTHER"),
        held((" (item of set)", "set")),
        held(),
    ],
)
def test_paths_that_do_not_tell_give_nothing(added: Holder) -> None:
    assert growing_reference(log(0), [log(0)], [added]) is None

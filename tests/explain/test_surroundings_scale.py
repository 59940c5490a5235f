"""One array among four times as many other things: the search costs at most four times as much, with some overhead."""

from __future__ import annotations

import gc
import sys
import types
from typing import TYPE_CHECKING, Any

import pluggy
import pytest

from pytest_gpuleak.engine.detect.epochs import EpochDetector
from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.lasting_roots import LastingRoots
from tests.support.calls import count_calls
from tests.support.standin import Buffer, StandInArrays

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.explain.search import Explanation

pytestmark = [pytest.mark.interpreter, pytest.mark.slow]

FEW, MANY = 300, 1_200
"""From 256 on the heap is walked in Python, where each step is a call (`referrers.SCAN_FROM`)."""


class Node:
    """An object with attributes."""

    def __init__(self, **values: object) -> None:
        vars(self).update(values)


def beside_many_entries(app: Any, target: object, size: int) -> None:
    app.HELD = {**{index: [index] for index in range(size)}, "last": target}


def beside_an_untracked_dict_that_many_hold(app: Any, target: object, size: int) -> None:
    entries = {f"k{index}": False for index in range(size)}
    app.HELD = [*([entries, index] for index in range(size)), target]


def deep_down(app: Any, target: object, size: int) -> None:
    for _ in range(size // 4):  # `MAX_EDGES` of a path are written
        target = [target]
    app.HELD = target


def in_many_containers(app: Any, target: object, size: int) -> None:
    app.HELD = [[target] for _ in range(size)]


def in_a_ring_of_many(app: Any, target: object, size: int) -> None:
    nodes = [Node(value=target) for _ in range(size)]
    for before, after in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        vars(before)["next"], vars(after)["previous"] = after, before
    app.HELD = nodes[0]


def in_many_globals(app: Any, target: object, size: int) -> None:
    for index in range(size):
        setattr(app, f"HELD{index}", target)


def in_many_classes(app: Any, target: object, size: int) -> None:
    app.HELD = [type(f"Kind{index}", (), {"held": target}) for index in range(size)]


def on_a_plugin(app: Any, target: object, size: int) -> None:
    manager = pluggy.PluginManager("leaky")
    for index in range(size // 10):
        manager.register(Node(manager=manager), f"plugin{index}")
    manager.register(Node(manager=manager, kept=target))
    app.HELD = manager


def on_an_object_of_many_items(app: Any, target: object, size: int) -> None:
    """As pytest keeps the items of a parametrized class: each with its parents, and all with the session."""
    session = Node(items=[])
    parent = Node(parent=session, keywords={})
    augmentation = Node(last=target)
    for index in range(size):
        item = Node(parent=parent, session=session, callspec={"params": {"augmentation": augmentation}, "index": index})
        vars(session)["items"].append(item)
    app.HELD = session


SHAPES = [
    beside_many_entries, beside_an_untracked_dict_that_many_hold, deep_down, in_many_containers, in_a_ring_of_many,
    in_many_globals, in_many_classes, on_a_plugin, on_an_object_of_many_items,
]  # fmt: skip


def calls_to_explain(shape: Callable[[Any, object, int], None], size: int) -> int:
    """Calls to explain an array that a module made for it holds.

    All other objects are hidden: a path of 300 references takes as many walks over the heap of the tests, minutes.
    """
    gc.freeze()
    app = sys.modules["surrounded"] = types.ModuleType("surrounded")
    try:
        target = Buffer()
        shape(app, target, size)
        box = [target]
        frame = {id(sys._getframe())}
        found: list[Explanation] = []
        calls = count_calls(lambda: found.extend(explain(box, ignore=frame)))
        assert found[0].holder.root.startswith("surrounded."), found[0].holder
        return calls
    finally:
        del sys.modules["surrounded"]
        vars(app).clear()
        gc.unfreeze()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_four_times_the_surroundings_cost_at_most_four_times_as_much(shape: Callable[[Any, object, int], None]) -> None:
    calls_to_explain(shape, FEW)  # what is looked up once
    assert calls_to_explain(shape, MANY) < 4.8 * calls_to_explain(shape, FEW)


def calls_to_reach(app: Any, shape: Callable[[Any, object, int], None], size: int) -> int:
    """Calls to recognise an array below a global that has not leaked before, in surroundings that are old."""
    shape(app, [], size)
    app.HISTORY = []
    app.__file__ = "/project/leaky_app.py"
    detector = EpochDetector([StandInArrays()])
    detector.start()
    try:
        detector.open()
        app.HISTORY.append(Buffer())
        arrays = detector.look()
        calls = count_calls(lambda: LastingRoots("/project/leaky_app.py".__eq__).reach(arrays, ()))
        arrays.clear()
        detector.close()
    finally:
        detector.stop()
        for name in [name for name in vars(app) if name.startswith("HELD")]:
            delattr(app, name)
    return calls


@pytest.mark.parametrize(
    "shape", [beside_many_entries, in_many_globals, on_an_object_of_many_items], ids=lambda shape: shape.__name__
)
def test_to_reach_a_target_costs_in_step_with_the_surroundings(
    app: Any, shape: Callable[[Any, object, int], None]
) -> None:
    calls_to_reach(app, shape, FEW)
    assert calls_to_reach(app, shape, MANY) < 4.8 * calls_to_reach(app, shape, FEW)

"""Weak containers that keep what they should not: values that refer to their keys, finalisers of their own object."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.edge_to_edit import KEEPS_KEY
from pytest_gpuleak.explain.edges.library import reaches
from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.model.findings import PathStep
from tests.support.leaks import hint_for, leak

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.findings import Holder

pytestmark = pytest.mark.interpreter


class Thing:
    """Stands for a tensor."""


class Agent:
    """A key, or what a finaliser waits for."""

    def __init__(self) -> None:
        self.batch = Thing()

    def close(self) -> None:
        pass


def holder_of(box: list[Any]) -> Holder:
    gc.collect()
    return explain(box, ignore={id(sys._getframe(1)), id(sys._getframe())})[0].holder


KEY = f"<{__name__}.Agent>"


@pytest.mark.parametrize(
    "value",
    [
        lambda agent: agent,
        lambda agent: {"agent": agent},
        lambda agent: agent.close,
        lambda agent: [agent.batch, {"deep": (agent,)}],
    ],
)
def test_a_value_that_refers_to_its_key(app: Any, value: Callable[[Agent], object]) -> None:
    app.STATS = weakref.WeakKeyDictionary()
    agent = Agent()
    app.STATS[agent] = value(agent)
    box = [agent.batch]
    del agent
    holder = holder_of(box)
    assert holder.root == "leaky_app.STATS"
    assert holder.path[0] == PathStep(f"[{KEY}]", f"weakref.WeakKeyDictionary{KEEPS_KEY}")


def test_a_value_that_does_not(app: Any) -> None:
    app.STATS = weakref.WeakKeyDictionary()
    agent = Agent()
    app.STATS[agent] = [Thing()]
    holder = holder_of([app.STATS[agent][0]])
    assert holder.text == f"leaky_app.STATS[{KEY}][0]"
    assert holder.path[0].type == "weakref.WeakKeyDictionary"


def test_the_dict_behind_it_stays_an_attribute(app: Any) -> None:
    app.STATS = weakref.WeakKeyDictionary()
    app.STATS.extra = [Thing()]
    assert holder_of([app.STATS.extra[0]]).text == "leaky_app.STATS.extra[0]"


def test_hints_of_weak_keys() -> None:
    first = leak("app.STATS", ("[<app.Agent>]", f"weakref.WeakKeyDictionary{KEEPS_KEY}"), ("['w']", "dict"))
    other = leak("app.STATS", ("[<app.Agent>]", "weakref.WeakKeyDictionary"), ("['w']", "dict"))
    assert "refers to its own key" in str(hint_for(first))
    assert "`weakref.ref`" in str(hint_for(first))
    assert "let go of the key" in str(hint_for(other))


@pytest.mark.parametrize("arguments", [lambda agent: (agent.close,), lambda agent: (print, agent)])
def test_a_finaliser_of_the_object_that_it_keeps(arguments: Callable[[Agent], tuple[Any, ...]]) -> None:
    agent = Agent()
    finalizer: Any = weakref.finalize(agent, *arguments(agent))
    box = [agent.batch]
    del agent
    holder = holder_of(box)
    finalizer.detach()
    assert holder.root.endswith(f" of {__name__}.Agent, which it refers to")
    hint = str(hint_for(leak(holder.root, kind="class")))
    assert "never dies" in hint


def test_a_finaliser_of_plain_values() -> None:
    agent = Agent()
    kept = Thing()
    finalizer: Any = weakref.finalize(agent, print, kept)
    box = [kept]
    del kept
    holder = holder_of(box)
    finalizer.detach()
    assert holder.root == f"weakref.finalize callback print of {__name__}.Agent"


def test_a_way_that_leads_through_all_of_the_process_is_not_followed() -> None:
    end = Thing()
    assert reaches([{"a": [end]}], end)
    assert reaches([lambda: end], end)
    assert not reaches([sys, Agent, globals()], end)


def test_a_long_way_is_given_up() -> None:
    end = Thing()
    far: Any = end
    for _ in range(5_000):
        far = [far]
    assert not reaches([far], end)
    while type(far) is list:
        far = far.pop()

"""One search for the memory of several tests tells each test's further holders as a search of its own would."""

from __future__ import annotations

from typing import Any

from pytest_gpuleak.explain.explain import explain


class Thing:
    """Stands for a tensor."""


def holders(*targets: object) -> list[list[str]]:
    """The text of each target's holders, the first one first; each target is a test's of its own."""
    groups = {id(target): number for number, target in enumerate(targets)}
    return [[found.holder.text, *(other.text for other in found.others)] for found in explain(targets, groups=groups)]


def test_the_same_first_holder_and_another_further_one(app: Any) -> None:
    app.OTHER, app.THIRD = [], []
    app.HISTORY += [Thing(), Thing(), Thing()]
    app.OTHER.append(app.HISTORY[1])
    app.THIRD.append(app.HISTORY[2])
    assert holders(*app.HISTORY) == [
        ["leaky_app.HISTORY[0]"],
        ["leaky_app.HISTORY[1]", "leaky_app.OTHER[0]"],
        ["leaky_app.HISTORY[2]", "leaky_app.THIRD[0]"],
    ]


def test_what_another_tests_holder_would_remove_still_holds(app: Any) -> None:
    """To free the second, a reader removes ``CACHE['log']``, which holds the first too."""
    both, one = Thing(), Thing()
    app.HISTORY.append(both)
    app.CACHE["log"] = [[both], {"x": one}]
    assert holders(both, one) == [
        ["leaky_app.HISTORY[0]", "leaky_app.CACHE['log'][0][0]"],
        ["leaky_app.CACHE['log'][1]['x']"],
    ]


def test_each_group_has_as_many_culprits_searched_for(app: Any) -> None:
    things = [Thing() for _ in range(20)]
    for number, thing in enumerate(things):
        setattr(app, f"FIRST_{number}", [thing])
        setattr(app, f"SECOND_{number}", [[thing]])
    assert [len(found) for found in holders(*things)] == [2] * 20
    together = explain(things)
    assert sum(bool(found.others) for found in together) == 8

"""All that holds an object for itself is listed: to free it takes an edit for each."""

from __future__ import annotations

import contextvars
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.further_holders import MAX_OTHERS

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

pytestmark = pytest.mark.newest


class Thing:
    """Stands for a tensor."""


def holders(*targets: object) -> list[list[str]]:
    """The text of each target's holders, the first one first."""
    return [[found.holder.text, *(other.text for other in found.others)] for found in explain(targets)]


def closing_over(value: object) -> Callable[[], object]:
    return lambda: value


def test_one_holder_has_no_others(app: Any) -> None:
    app.HISTORY.append(Thing())
    assert holders(*app.HISTORY) == [["leaky_app.HISTORY[0]"]]


def test_two_lists(app: Any) -> None:
    app.OTHER = [None, Thing()]
    app.HISTORY.append(app.OTHER[1])
    assert holders(*app.HISTORY) == [["leaky_app.HISTORY[0]", "leaky_app.OTHER[1]"]]


def test_a_list_an_attribute_and_a_dict(app: Any) -> None:
    thing = Thing()
    app.HISTORY.append(thing)
    app.CACHE["x"] = [thing]
    app.Attention.last = thing
    assert sorted(holders(*app.HISTORY)[0]) == [
        "leaky_app.Attention.last",
        "leaky_app.CACHE['x'][0]",
        "leaky_app.HISTORY[0]",
    ]


def test_a_container_with_two_names_is_one_holder(
    app: Any, make_module: Callable[[str, str], types.ModuleType]
) -> None:
    """To take the item out of the list is one edit, whatever the list is called."""
    other: Any = make_module("other_app", "")
    other.SAME = app.SAME = app.HISTORY
    app.HISTORY.append(Thing())
    assert len(holders(*app.HISTORY)[0]) == 1


def test_two_names_of_one_object(app: Any) -> None:
    app.FIRST = app.SECOND = Thing()
    assert sorted(holders(app.FIRST)[0]) == ["leaky_app.FIRST", "leaky_app.SECOND"]


def test_two_names_of_one_object_beside_another_holder(app: Any) -> None:
    app.FIRST = app.SECOND = Thing()
    app.HISTORY.append({"x": app.FIRST})
    assert sorted(holders(app.FIRST)[0]) == ["leaky_app.FIRST", "leaky_app.HISTORY[0]['x']", "leaky_app.SECOND"]


def test_an_object_twice_in_one_list_is_listed_once(app: Any) -> None:
    """The edge is the list's: whoever empties it lets go of both."""
    thing = Thing()
    app.HISTORY.extend([thing, thing])
    del thing
    assert holders(app.HISTORY[0]) == [["leaky_app.HISTORY[0]"]]


def test_a_global_and_a_closure(app: Any) -> None:
    app.LAST = Thing()
    app.hook = closing_over(app.LAST)
    first, *others = holders(app.LAST)[0]
    assert first == "leaky_app.LAST"
    assert len(others) == 1
    assert "leaky_app.hook" in others[0]


def test_a_global_and_a_cached_result(make_module: Callable[[str, str], types.ModuleType]) -> None:
    module: Any = make_module(
        "caching_app",
        "import functools\n\nclass Thing:\n    pass\n\n\n@functools.lru_cache\ndef make(i):\n    return Thing()\n",
    )
    module.LAST = module.make(1)
    found = explain([module.LAST])[0]
    kinds = {(holder.kind, holder.root) for holder in (found.holder, *found.others)}
    assert kinds == {("module", "caching_app.LAST"), ("cache", "caching_app.make")}


def test_a_container_that_both_hold(app: Any) -> None:
    app.OTHER = []
    box = {"thing": Thing()}
    app.HISTORY.append(box)
    app.OTHER.append(box)
    thing = box["thing"]
    del box
    assert holders(thing) == [["leaky_app.HISTORY[0]['thing']", "leaky_app.OTHER[0]['thing']"]]


def test_a_context_that_a_global_holds_is_no_threads(app: Any) -> None:
    variable: contextvars.ContextVar[object] = contextvars.ContextVar("variable")
    app.HISTORY.append(contextvars.copy_context())
    app.HISTORY[0].run(variable.set, Thing())
    found = explain([app.HISTORY[0][variable]])[0]
    assert (found.holder.text, found.others) == ("leaky_app.HISTORY[0][<ContextVar 'variable'>]", ())


def test_targets_with_different_holders(app: Any) -> None:
    app.OTHER, app.THIRD = [], {}
    one, two, three = Thing(), Thing(), Thing()
    app.HISTORY.append(one)
    app.OTHER.append(one)
    app.OTHER.append([two])
    app.THIRD["x"] = two
    app.THIRD["y"] = three
    app.CACHE["z"] = three
    found = holders(one, two, three)
    assert [texts[0].partition("[")[0] for texts in found] == [
        "leaky_app.HISTORY",
        "leaky_app.THIRD",
        "leaky_app.CACHE",
    ]
    assert found[0][1:] == ["leaky_app.OTHER[0]"]
    assert found[1][1:] == ["leaky_app.OTHER[1][0]"]
    assert found[2][1:] == ["leaky_app.THIRD['y']"]


@pytest.mark.parametrize("number", [MAX_OTHERS, MAX_OTHERS + 1, MAX_OTHERS + 10])
def test_no_more_than_a_few_are_listed(app: Any, number: int) -> None:
    thing = Thing()
    for index in range(number):
        setattr(app, f"LIST{index}", [thing])
    listed = holders(thing)[0]
    assert len(listed) == len(set(listed)) == min(number, MAX_OTHERS + 1)


def test_cycles_end(app: Any) -> None:
    thing: Any = Thing()
    thing.self = thing
    thing.box = {"thing": thing, "boxes": []}
    thing.box["boxes"].append(thing.box)
    app.HISTORY.append(thing.box)
    app.CACHE["box"] = [thing.box, app.HISTORY, app.CACHE]
    first, *others = holders(thing)[0]
    assert first == "leaky_app.HISTORY[0]['thing']"
    assert others == ["leaky_app.CACHE['box'][0]['thing']"]
    thing.box["boxes"].clear()
    vars(thing).clear()
    app.CACHE.clear()


def test_a_running_frame_is_not_listed(app: Any) -> None:
    """It lets go when it returns: nobody has to edit it."""
    thing = Thing()
    app.HISTORY.append(thing)
    assert holders(thing) == [["leaky_app.HISTORY[0]"]]


def test_the_cuts_free_the_object(app: Any) -> None:
    """What is listed is enough: once each holder has let go, nothing holds the object."""
    thing = Thing()
    app.HISTORY.append({"a": thing})
    app.CACHE["x"] = [thing]
    app.LAST = thing
    gone = weakref.ref(thing)
    listed = holders(thing)[0]
    del thing
    assert sorted(listed) == ["leaky_app.CACHE['x'][0]", "leaky_app.HISTORY[0]['a']", "leaky_app.LAST"]
    for text in listed:
        assert gone() is not None
        exec(f"del {text}", {"leaky_app": app})
    assert gone() is None

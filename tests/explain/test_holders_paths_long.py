"""Long paths are shortened in the middle, and the edge to edit is marked."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.edge_to_edit import MAX_PATH, edge_to_edit
from pytest_gpuleak.explain.paths import Writer
from pytest_gpuleak.explain.roots.roots import EDITABLE, Root
from pytest_gpuleak.model.findings import Holder, PathStep

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.interpreter


class Thing:
    """Stands for a tensor."""


class Model:
    content: object = None


def holder_of(*chain: object) -> Holder:
    """The holder as it is written for the way down from the first object, a global's value, to the last."""
    return Writer({}).holder(chain, Root(EDITABLE, "module", "leaky_app.HELD", hops=1))


def nested(wrappings: Sequence[str]) -> list[object]:
    """The way down through a list, a tuple or dicts with these keys, outermost first."""
    found: list[object] = [Thing()]
    for kind in reversed(wrappings):
        inner = found[0]
        found.insert(0, [inner] if kind == "list" else (inner,) if kind == "tuple" else {kind: inner})
    return found


def test_twelve_edges_are_shown() -> None:
    chain = nested(["a"] * 12)
    assert holder_of(*chain).text == "leaky_app.HELD" + "['a']" * 12


def test_of_more_the_ends_are_shown_and_the_path_keeps_all(app: Any) -> None:
    chain = nested(["a"] * 20)
    holder = holder_of(*chain)
    assert holder.text == "leaky_app.HELD" + "['a']" * 4 + " … 12 more … " + "['a']" * 4
    assert len(holder.path) == 20
    app.HELD = chain[0]
    assert eval(holder.root + "".join(step.edge for step in holder.path), {"leaky_app": app}) is chain[-1]


def test_long_keys_shorten_a_path_of_few_edges() -> None:
    chain = nested(["k" * 35] * 10)
    assert " … 2 more … " in holder_of(*chain).text


def test_the_edge_to_edit_stays_in_sight() -> None:
    chain = nested(["a"] * 8 + ["list"] + ["a"] * 8)
    holder = holder_of(*chain)
    assert holder.text == "leaky_app.HELD" + "['a']" * 4 + " … 4 more … [0] … 4 more … " + "['a']" * 4
    assert edge_to_edit(holder) == 8
    assert holder.path[8].edge == "[0]"


def test_very_long_paths_lose_their_middle() -> None:
    chain = nested(["a"] * 500)
    holder = holder_of(*chain)
    assert len(holder.path) == MAX_PATH + 1
    assert holder.text == "leaky_app.HELD" + "['a']" * 4 + " … 492 more … " + "['a']" * 4


def path(*steps: tuple[str, str]) -> Holder:
    found = tuple(PathStep(edge, label) for edge, label in steps)
    return Holder("module", "app.X", "app.X" + "".join(edge for edge, _ in steps), found)


FRAME = ((".tb_frame", "traceback"), (".f_locals['part']", "frame of Trainer.step"))
WRAPPER = (".__closure__[0].cell_contents", "closure variable 'old' of patch.<locals>.forward")
ADAM = "torch.optim.adam.Adam"


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        (path(), None),
        (path(("[3]", "list")), 0),
        (path((".losses", "app.Trainer"), ("[3]", "list"), (".grad_fn", "torch.Tensor")), 1),
        (path(("['loss']", "dict"), ("[3]", "list")), 1),
        (path(("['loss']", "dict"), ("['train']", "dict")), 0),
        (path(("['step-17']", "dict"), ("[0]", "list")), 0),
        (path(("[0]", "tuple"), ("[3]", "list")), 1),
        (path((" (item of set)", "set"), ("[3]", "list")), 0),
        (path((" (cached result)", "functools.lru_cache"), ("[3]", "list")), 0),
        (path((".trainer", "app.App"), (".loss", "app.Trainer")), 1),
        (path((".param_groups", ADAM), ("[0]", "list"), ("['params']", "dict"), ("[1]", "list")), None),
        (path((".optimizer", "app.Trainer"), (".state", ADAM), ("[<Parameter>]", "collections.defaultdict")), 0),
        (path((".optimizer", "app.Trainer"), (".state", ADAM), (" (a key)", "collections.defaultdict")), 0),
        (
            path(
                (".net", "app.Trainer"),
                ("._forward_hooks", "torch.nn.modules.linear.Linear"),
                ("[3]", "collections.OrderedDict"),
                (".__closure__[0].cell_contents", "closure variable 'kept' of watch.<locals>.hook"),
            ),
            2,
        ),
        (path((".layer", "app.Net (torch.nn.Module)"), (".weight", "torch.nn.Linear (torch.nn.Module)")), None),
        (path((".__closure__[0].cell_contents", "closure variable 'batch' of make.<locals>.step")), 0),
        (path(WRAPPER, WRAPPER, (".weight", "app.Net")), None),
        (path((".net", "app.App"), (".forward", "app.Net"), WRAPPER, WRAPPER), 1),
        (path((".hooks", "app.App"), ("[3]", "list"), WRAPPER, WRAPPER), 1),
        (path((".handlers", "logging.Logger"), ("[0]", "list"), (".buffer", "logging.Handler")), 1),
        (path((".last_error", "app.Trainer"), (".__traceback__", "ValueError"), *FRAME), 0),
        (path((".__traceback__", "ValueError"), *FRAME), None),
        (path((".error", "app.Result"), (".inner", "app.Wrapped"), (".__traceback__", "app.Failure"), *FRAME), 1),
        (dataclasses.replace(path((".__traceback__", "ValueError"), *FRAME), kind="unknown"), 2),
    ],
)
def test_the_edge_to_edit(holder: Holder, expected: int | None) -> None:
    assert edge_to_edit(holder) == expected


@pytest.mark.parametrize("count", [0, 1, 5, 9, 30, 300])
def test_the_edge_to_edit_is_in_the_text(count: int) -> None:
    model = Model()
    chain = nested(["a", "tuple", "list"] * count)
    model.content = chain[0]
    holder = holder_of(model, *chain)
    decided = edge_to_edit(holder)
    assert decided is not None
    assert holder.path[decided].edge == ("[0]" if count else ".content")
    assert holder.path[decided].edge in holder.text

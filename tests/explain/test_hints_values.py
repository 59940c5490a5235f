"""Hints on what an array is: a loss with its graph, a gradient, an optimizer's state, a view."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.explain.hints import values
from pytest_gpuleak.explain.hints.order import MAX_HINT_LENGTH
from pytest_gpuleak.model.readings import NOT_EVALUATED
from tests.support.leaks import CLOSURE, hint_for, leak, trail

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

pytestmark = pytest.mark.newest

STATE = (".state", "torch.optim.adam.Adam")
OF_PARAMETER = ("[<Parameter>]", "collections.defaultdict")
GRAD = (".grad", "torch.nn.parameter.Parameter")
SAVED = (".grad_fn.next_functions[0][0]._saved_self", "torch.Tensor")


@pytest.mark.parametrize(
    ("finding", "place"),
    [
        (leak("app.LOSSES", ("[0]", "list"), shape=(), nodes=4), "`app.LOSSES`"),
        (leak("app.METRICS", ("['loss']", "dict"), ("[7]", "list"), shape=(), nodes=4), "`app.METRICS['loss']`"),
        (leak("app.TRAINER", (".last", "app.Trainer"), nodes=1, found="retained"), "`app.TRAINER.last`"),
        (leak("app.TRAINER", (".losses", "app.Trainer"), ("[0]", "list"), shape=(), nodes=4), "`app.TRAINER.losses`"),
        (leak("app.TOTAL", nodes=9, shape=(), found="retained"), "`app.TOTAL`"),
        (leak("app.LOSSES", ("[0]", "list"), SAVED), "`app.LOSSES`"),
        (leak("app.TRAINER", (".model", "app.Trainer"), (".weight", "app.Net"), nodes=4, count=3), "`app.TRAINER`"),
        (leak("fixture 'log'", ("['loss']", "dict"), kind="fixture", nodes=2), "Fixture 'log'"),
    ],
)
def test_a_result_is_to_be_kept_without_its_graph(finding: Finding, place: str) -> None:
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith(f"{place} keeps a result with its autograd graph")
    assert "`.detach()`" in hint
    assert "`.item()`" in hint


@pytest.mark.parametrize(
    "finding",
    [
        leak("app.HISTORY", ("[0]", "list")),
        leak("app.HISTORY", ("[0]", "list"), nodes=0),
        leak("app.HISTORY", (".grad_fnord", "app.Log")),
        leak("app.TRAINERS", ("[3]", "list"), (".last", "app.Trainer"), nodes=4),  # the trainers pile up
        leak("app.CALLBACKS", ("[3]", "list"), CLOSURE, nodes=4),  # the callback is the culprit
        leak("C++", kind="native", nodes=4, text="C++ -> torch.Tensor"),
        leak("frame of f: local 'loss'", kind="frame", nodes=4),
    ],
)
def test_no_graph_or_another_culprit_is_not_blamed_on_a_graph(finding: Finding) -> None:
    assert values.autograd_graph(trail(finding)) is None


@pytest.mark.parametrize(
    ("finding", "place"),
    [
        (leak("app.LAST", ("[0]", "list"), shape=(), storage=2**22), "`app.LAST`"),
        (leak("app.LAST", found="retained", shape=(8,), storage=2**22), "`app.LAST`"),
        (leak("app.LAST", ("[0]", "list"), ("._base", "torch.Tensor"), shape=(1024, 1024)), "`app.LAST`"),
        (leak("app.NET", (".a", "app.Net"), ("[0]", "list"), count=2, shape=(8,), storage=2**22), "`app.NET`"),
    ],
)
def test_a_small_view_is_to_be_copied(finding: Finding, place: str) -> None:
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith(f"{place} keeps a view, and with it the whole storage")
    assert "`.clone()`" in hint


@pytest.mark.parametrize(
    "finding",
    [
        leak("app.LAST", ("[0]", "list"), shape=(64, 64)),
        leak("app.LAST", ("[0]", "list"), shape=(64, 64), storage=4 * 64 * 65),  # most of its storage
        leak("app.LAST", ("[0]", "list"), shape=(64, 64), storage=16),  # expanded
        leak("app.LAST", ("[0]", "list"), shape=(0,), storage=2**22),
        leak("app.LAST", ("[0]", "list"), shape=(), storage=512),  # too little to be worth a word
        leak("app.CALLBACKS", ("[0]", "list"), CLOSURE, shape=(), storage=2**22),
        leak("app.NODE", ("._base", "app.Node"), (".x", "app.Base")),
        leak("C++", kind="native", shape=(), storage=2**22, text="C++ -> torch.Tensor"),
    ],
)
def test_what_is_no_view_or_a_large_one_needs_no_copy(finding: Finding) -> None:
    assert values.view_of_large_storage(trail(finding)) is None


def test_an_optimizer_is_named_with_its_state() -> None:
    finding = leak("fixture 'opt'", STATE, OF_PARAMETER, ("['exp_avg']", "dict"), kind="fixture", found="retained")
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith("The optimizer fixture 'opt' keeps its state (`exp_avg`)")
    assert "`state.clear()`" in hint


@pytest.mark.parametrize(
    "finding",
    [
        leak("app.OPTS", ("[0]", "list"), STATE, OF_PARAMETER, ("['exp_avg']", "dict")),  # the optimizers pile up
        leak("app.GAME", (".state", "app.Game"), ("['board']", "dict"), found="retained"),
        leak("app.GAME", (".state", "app.Game"), ("['board']", "collections.defaultdict"), found="retained"),
    ],
)
def test_state_of_something_else_is_no_optimizers(finding: Finding) -> None:
    assert values.optimizer_state(trail(finding)) is None


def test_gradients_are_to_be_dropped() -> None:
    finding = leak("fixture 'model'", (".weight", "app.Net"), GRAD, kind="fixture", found="retained")
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith("The gradient of fixture 'model'.weight stays")
    assert "`zero_grad(set_to_none=True)`" in hint


@pytest.mark.parametrize(
    "finding",
    [
        leak("app.MODELS", ("[3]", "list"), (".weight", "app.Net"), GRAD),  # the models pile up
        leak("app.RASTER", (".grad", "app.Raster"), found="retained"),  # another's attribute
        leak("app.W", GRAD, ("[0]", "list"), found="retained"),
        leak("app.W", (".gradient", "torch.Tensor"), found="retained"),
    ],
)
def test_another_grad_is_no_gradient(finding: Finding) -> None:
    assert values.gradient(trail(finding)) is None


def lazy(finding: Finding) -> Finding:
    """The finding with arrays that were not evaluated."""
    arrays = [dataclasses.replace(array, dtype=array.dtype + NOT_EVALUATED) for array in finding.tensors]
    return dataclasses.replace(finding, tensors=tuple(arrays))


def test_lazy_arrays_are_to_be_evaluated_before_they_are_kept() -> None:
    hint = hint_for(lazy(leak("app.LOSSES", ("[0]", "list"))))
    assert hint is not None
    assert hint.startswith("`app.LOSSES` keeps arrays that were never evaluated")
    assert "`mx.eval()`" in hint
    long = hint_for(lazy(leak("app." + "LOSSES" * 50, ("[0]", "list"))))
    assert long is not None
    assert len(long) <= MAX_HINT_LENGTH
    for other in (leak("app.LOSSES", ("[0]", "list")), lazy(leak("C++", kind="native", text="C++ -> mlx.core.array"))):
        assert values.not_evaluated(trail(other)) is None


RING = "a cycle through C++ that no collector frees"


def test_an_array_of_objects_in_a_ring_is_named() -> None:
    steps = (("['me']", "dict"), ("[0]", "numpy.ndarray"), ("['t']", "dict"))
    assert "A NumPy array of objects" in (hint_for(leak(RING, *steps, kind="native")) or "")


@pytest.mark.parametrize(
    "finding",
    [
        leak("app.TABLE", ("[0]", "numpy.ndarray"), ("['t']", "dict")),  # an array that a global keeps
        leak(RING, (".shape", "numpy.ndarray"), kind="native"),
        leak(RING, ("[0]", "list"), kind="native"),
    ],
)
def test_other_rings_and_arrays_are_not(finding: Finding) -> None:
    assert values.array_of_objects(trail(finding)) is None

"""Hints on places that outlive a test by their nature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.explain.hints import places
from pytest_gpuleak.explain.hints.order import advice_for
from tests.support.leaks import CLOSURE, hint_for, leak, trail

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

pytestmark = pytest.mark.newest


@pytest.mark.parametrize(
    ("finding", "place"),
    [
        (leak("app.HISTORY", ("[3]", "list")), "app.HISTORY"),
        (leak("app.HISTORY", ("[3]", "list"), ("[0]", "tuple")), "app.HISTORY"),
        (leak("app.HISTORY", ("[3]", "list"), (".weight", "app.Net")), "app.HISTORY"),
        (leak("app.SEEN", (" (item of set)", "set")), "app.SEEN"),
        (leak("app.MODEL", (".outputs", "app.Net"), ("[0]", "list")), "app.MODEL.outputs"),
        (leak("app.Net.registry", ("['a']", "dict"), kind="class"), "app.Net.registry"),
    ],
)
def test_a_container_that_each_run_adds_to_is_named(finding: Finding, place: str) -> None:
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith(f"Each run adds to `{place}` and nothing takes it out")
    assert "teardown" in hint


@pytest.mark.parametrize(
    ("finding", "place"),
    [
        (leak("sys.meta_path", ("[6]", "list"), (".x", "app.Finder")), "sys.meta_path"),
        (leak("logging.root", (".handlers", "logging.RootLogger"), ("[2]", "list")), "logging.root.handlers"),
    ],
)
def test_what_each_run_adds_to_a_list_of_pythons_own_is_to_be_taken_out(finding: Finding, place: str) -> None:
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith(f"Each run adds to `{place}`, which stays until Python ends")
    assert "`removeHandler()`" in hint


def test_an_array_that_each_run_makes_larger_is_to_be_reset() -> None:
    hint = hint_for(leak("app.SEEN"))
    assert hint is not None
    assert hint.startswith("Each run puts a larger array into `app.SEEN`")
    assert hint_for(leak("torch.SEEN")) is None


def test_records_with_a_loss_are_to_be_stored_without_its_graph() -> None:
    hint = hint_for(leak("app.HISTORY", ("[3]", "list"), (".loss", "app.Step"), nodes=40))
    assert hint is not None
    assert hint.startswith("Each run adds to `app.HISTORY`, and what it adds keeps its autograd graph")
    assert "`.item()`" in hint
    assert "`.detach()`" in hint


@pytest.mark.parametrize(
    "finding",
    [
        leak("app.HISTORY", ("[3]", "list"), found="retained"),
        leak("app.CHAIN", ("[0]", "tuple")),  # no one adds to a tuple
        leak("app.MODEL", (".weight", "app.Net")),
        leak("app.f", CLOSURE, ("[0]", "list")),
        leak("torch.cuda._lazy_calls", ("[0]", "list")),  # no user's
        leak("threading._shutdown_locks", ("[0]", "list")),
        leak("frame of app.main: local 'xs'", ("[0]", "list"), kind="frame"),
        leak("C++", ("[0]", "list"), kind="native", text="C++ -> list[0]"),
    ],
)
def test_what_does_not_grow_or_is_nobodys_to_edit_is_not_called_a_growing_container(finding: Finding) -> None:
    assert places.growing_container(trail(finding)) is None


def test_a_global_that_keeps_what_was_put_there_is_reset_or_allowed() -> None:
    for steps in ([], [("['x']", "dict")], [(".kv", "app.Net")]):
        hint = hint_for(leak("app.CACHE", *steps, found="retained"))
        assert hint is not None
        assert hint.startswith("The global `app.CACHE` keeps it")
        assert "`allow_gpu_leak`" in hint


def growing_at(index: int, *steps: tuple[str, str], root: str = "app.STATE") -> str | None:
    finding = leak(root, *steps)
    advice = advice_for(finding, index)
    return None if advice is None else f"{advice.code} {advice.hint}"


def test_the_container_that_was_seen_to_grow_is_named() -> None:
    hint = growing_at(2, ("[16]", "dict"), ("['all']", "dict"), ("[0]", "list"))
    assert hint is not None
    assert hint.startswith("GL701 Each run adds to `app.STATE[16]['all']` and")


def test_a_chain_and_further_attributes_are_told_apart() -> None:
    chain = growing_at(0, (".previous", "app.Node"), (".value", "app.Node"))
    assert chain is not None
    assert chain.startswith(
        "GL706 Each run adds an object to the chain behind `app.STATE`, and each keeps the one before"
    )
    slots = growing_at(0, (".slot_0", "app.Bank"))
    assert slots is not None
    assert slots.startswith("GL707 Each run gives `app.STATE` an attribute more, here `.slot_0`")
    assert growing_at(0, (".slot_0", "torch.Bank"), root="torch.nn.BANK") is None


def test_a_class_attribute_is_reset_with_its_class() -> None:
    hint = hint_for(leak("test_it.TestNet.model", kind="class", found="retained"))
    assert hint is not None
    assert hint.startswith("The class attribute `test_it.TestNet.model`")
    assert "`tearDownClass`" in hint


@pytest.mark.parametrize("root", ["torch._C._workspaces", "sys._ps1", "numpy.core.cache", "_pytest.x.Y"])
def test_globals_of_libraries_get_no_advice(root: str) -> None:
    assert hint_for(leak(root, found="retained")) is None
    assert hint_for(leak(root, found="retained", kind="class")) is None
    assert hint_for(leak(root, ("[0]", "list"))) is None


def test_a_way_that_cannot_be_written_gets_no_advice() -> None:
    assert hint_for(leak("app.POOL", (" (inside app.Pool)", "app.Pool"), found="retained")) is None


@pytest.mark.parametrize(
    ("setup", "teardown"),
    [("setUp", "tearDown"), ("setup_method", "teardown_method"), ("setUpClass", "tearDownClass")],
)
def test_what_a_setup_made_is_for_its_teardown(setup: str, teardown: str) -> None:
    hint = hint_for(leak("app.REGISTRY", ("[0]", "list"), function=setup))
    assert hint == f"`app.REGISTRY` still keeps what `{setup}` made: let `{teardown}` take it out again."


@pytest.mark.parametrize("function", ["test_setup", "setup", None, "<module>"])
def test_other_functions_are_no_setup(function: str | None) -> None:
    assert places.made_in_setup(trail(leak("app.REGISTRY", ("[0]", "list"), function=function))) is None


def test_a_class_made_in_a_test_is_taken_out_of_its_registry() -> None:
    finding = leak("app.Base.known", ("['Sub']", "dict"), (".w", "class test_it.<locals>.Sub"), kind="class")
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith("The class `Sub`, defined in a function, stays registered in `app.Base.known`")


def test_a_class_in_a_registry_of_an_extension_is_to_be_defined_once() -> None:
    inside = [
        (f" (inside jaxlib._jax.pytree.{name})", f"jaxlib._jax.pytree.{name}")
        for name in ("PyTreeDef", "PyTreeRegistry")
    ]
    finding = leak(
        "equinox._tree._leaf_treedef", *inside, (".__init__", "class test_it.<locals>.Model"), (".key", "app.Key")
    )
    assert hint_for(finding) == (
        "The class `Model`, defined in a function, stays registered in a `jaxlib._jax.pytree.PyTreeRegistry`: define it once "
        "in a module."
    )


@pytest.mark.parametrize(
    "steps",
    [
        [("['Net']", "dict"), (".w", "class Net")],  # defined once, in a module
        [("['Net']", "dict"), (".w", "app.Net")],  # an instance
        [(".kind", "app.Net"), (".w", "class test_it.<locals>.Sub")],  # in no registry
        [(" (inside lib.Node)", "lib.Node"), (".w", "class test_it.<locals>.Sub")],
    ],
)
def test_other_classes_are_not_to_be_taken_out(steps: list[tuple[str, str]]) -> None:
    assert places.registered_class(trail(leak("app.KNOWN", *steps))) is None

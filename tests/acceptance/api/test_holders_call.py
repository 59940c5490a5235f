"""`pytest_gpuleak.holders(value)`: who keeps an object alive, asked outside of a test run."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import types
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import pytest_gpuleak
from pytest_gpuleak import Holders, holders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Runner

pytestmark = pytest.mark.newest


class Thing:
    """Stands for a tensor."""


@pytest.fixture
def app() -> Iterator[Any]:
    """A module that stands for the user's application."""
    module = types.ModuleType("held_app")
    vars(module).update(HISTORY=[], CACHE={})
    sys.modules["held_app"] = module
    yield module
    del sys.modules["held_app"]
    vars(module).clear()


def script(source: str) -> str:
    """What a program prints that runs in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=True, timeout=120
    ).stdout


def texts(found: Holders) -> list[str]:
    return [holder.text for holder in found]


def test_one_holder(app: Any) -> None:
    app.HISTORY.append({"loss": Thing()})
    found = holders(app.HISTORY[0]["loss"])
    assert isinstance(found, Holders)
    assert [(holder.kind, holder.root, holder.text) for holder in found] == [
        ("module", "held_app.HISTORY", "held_app.HISTORY[0]['loss']")
    ]
    assert found.autograd is None


def test_the_name_on_the_package_and_the_function_are_the_same(app: Any) -> None:
    app.HISTORY.append(Thing())
    asked = [holders(app.HISTORY[0]), pytest_gpuleak.holders(app.HISTORY[0])]
    from pytest_gpuleak.api import holders as function

    assert [texts(found) for found in (*asked, function(app.HISTORY[0]))] == [["held_app.HISTORY[0]"]] * 3


def test_a_local_variable_counts_where_nothing_else_holds(app: Any) -> None:
    mine = Thing()
    (found,) = holders(mine)
    assert found.kind == "frame"
    assert "'mine'" in found.text
    app.HISTORY.append(mine)
    assert texts(holders(mine)) == ["held_app.HISTORY[0]"]


def test_several_holders(app: Any) -> None:
    thing = Thing()
    app.HISTORY.append(thing)
    app.CACHE["x"] = [thing]
    found = holders(thing)
    assert texts(found) == ["held_app.HISTORY[0]", "held_app.CACHE['x'][0]"]
    assert len(found) == 2
    assert texts_of(found[0:1]) == ["held_app.HISTORY[0]"]
    assert str(found) == repr(found)
    assert all(text in str(found) for text in texts(found))


def texts_of(found: tuple[Any, ...]) -> list[str]:
    return [holder.text for holder in found]


def test_an_object_that_nothing_holds() -> None:
    for made in (Thing, lambda: [Thing()]):
        (found,) = holders(made())
        assert (found.kind, found.text) == ("frame", "the call of holders() alone")


@pytest.mark.torch
def test_a_tensor_that_nothing_holds_and_one_that_a_graph_holds() -> None:
    torch = pytest.importorskip("torch")
    (found,) = holders(torch.ones(3))
    assert found.text == "the call of holders() alone"
    weight = torch.ones(3, requires_grad=True)
    result = weight * torch.ones(3)
    (found,) = holders(result.grad_fn._saved_other)
    assert found.text != "the call of holders() alone"


def test_the_steps_are_bounded(app: Any) -> None:
    app.HISTORY.append(Thing())
    (found,) = holders(app.HISTORY[0], steps=0)
    assert found.root in ("unknown (not explained in full: the search met its limit of objects)", "held_app.HISTORY")


def test_nothing_is_kept(app: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        thing = Thing()
        app.HISTORY.append(thing)
        app.CACHE["x"] = thing
        gone = weakref.ref(thing)
        found = holders(thing)
        del thing
        app.HISTORY.clear()
        app.CACHE.clear()
        assert gone() is None
        assert len(found) == 2
    finally:
        gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_stays_as_it_was(app: Any, enabled: bool) -> None:
    app.HISTORY.append(Thing())
    frozen = gc.get_freeze_count()
    try:
        if not enabled:
            gc.disable()
        holders(app.HISTORY[0])
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert gc.get_freeze_count() == frozen


def test_the_variable_of_a_script_does_not_count() -> None:
    printed = script(
        """
        import sys, types
        import pytest_gpuleak
        from pytest_gpuleak import holders

        class Thing:
            pass

        app = types.ModuleType("app")
        app.HISTORY = []
        sys.modules["app"] = app
        loss = Thing()
        app.HISTORY.append({"loss": loss})
        print(pytest_gpuleak.holders(loss))
        print([found.text for found in holders(loss)])

        def ask(value):
            return [found.text for found in holders(value)]

        print(ask(loss))
        lone = Thing()
        print([found.text for found in holders(lone)])
        """
    ).splitlines()
    assert printed[:3] == [
        "held by  app.HISTORY  (module global)",
        "           [0]: dict  <- cut here",
        "             ['loss']",
    ]
    *_, asked, in_a_function, lone = printed
    assert asked == """["app.HISTORY[0]['loss']"]"""
    assert "app.HISTORY[0]['loss']" in in_a_function
    assert "__main__.loss" in in_a_function  # a function is not the place where the variable is known
    assert lone == "['__main__.lone']"


def test_in_a_namespace_that_is_no_module(app: Any) -> None:
    """As a notebook's cells are run: code at module level with a dict of its own for globals."""
    namespace: dict[str, Any] = {"__name__": "cell", "Thing": Thing}
    exec(
        "import held_app\n"
        "from pytest_gpuleak import holders\n"
        "loss = Thing()\n"
        "held_app.HISTORY.append(loss)\n"
        "found = [holder.text for holder in holders(loss)]\n",
        namespace,
    )
    assert namespace["found"] == ["held_app.HISTORY[0]"]


def test_to_import_the_package_loads_none_of_it() -> None:
    printed = script(
        """
        import sys
        import pytest_gpuleak
        print(sorted(name for name in sys.modules if name.startswith("pytest_gpuleak.")))
        print("holders" in dir(pytest_gpuleak), callable(pytest_gpuleak.holders))
        print(any(name in sys.modules for name in ("torch", "numpy", "pytest_gpuleak.explain.search")))
        """
    ).splitlines()
    assert printed == ["[]", "True True", "False"]


def test_in_a_test_that_is_watched(run: Runner) -> None:
    found = run(
        """
        import gc
        from pytest_gpuleak import holders
        OLD = []
        KEPT = []
        FROZEN = gc.get_freeze_count()  # Python 3.12 starts with some

        def test_first():
            OLD.append({"x": Buffer(100)})

        def test_asks():
            assert [found.text for found in holders(OLD[0]["x"])] == ["test_it.OLD[0]['x']"]
            KEPT.append(Buffer(100))
            assert [found.text for found in holders(KEPT[-1])] == [f"test_it.KEPT[{len(KEPT) - 1}]"]

        def test_asks_and_leaves_nothing():
            young = [Buffer(100)]
            assert len(holders(young[0])) == 1

        def test_last():
            assert gc.get_freeze_count() == FROZEN
        """
    )
    found.result.assert_outcomes(passed=4)
    assert found.verdicts == {
        "test_first": "leaked",
        "test_asks": "leaked",
        "test_asks_and_leaves_nothing": "clean",
        "test_last": "clean",
    }


@pytest.mark.torch
def test_the_graph_behind_a_tensor_is_told(run_with_torch: Any) -> None:
    done = run_with_torch(
        """
        import sys, types, torch
        from pytest_gpuleak import holders

        app = types.ModuleType("app")
        app.HISTORY = []
        sys.modules["app"] = app
        weight = torch.ones(64, 64, requires_grad=True)
        app.HISTORY.append((weight.exp() * 2).sum())
        found = holders(app.HISTORY[0])
        print(found)
        assert found.autograd is not None
        assert found.autograd.nodes >= 3
        assert found.autograd.saved_bytes >= 64 * 64 * 4
        print(holders(torch.ones(3)).autograd)
        """
    )
    printed = done.stdout.splitlines()
    assert "app.HISTORY[0]" in printed[0]
    assert any("graph" in line for line in printed)
    assert printed[-1] == "None"


def test_a_notebook_shows_html_with_the_reference_to_cut_marked(app: Any) -> None:
    app.HISTORY.append({"<b>": Thing()})
    shown = holders(app.HISTORY[0]["<b>"])._repr_html_()
    assert shown.startswith("<pre>held by  held_app.HISTORY  (module global)")
    assert "             [&#x27;&lt;b&gt;&#x27;]</span>" in shown
    assert '<span style="font-weight:bold;' in shown
    assert "[0]: dict  &lt;- cut here</span>" in shown

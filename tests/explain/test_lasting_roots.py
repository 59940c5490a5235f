"""The walk down from roots that outlive the tests: it names what they lead to, and says nothing of the rest."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.engine.detect.epochs import EpochDetector
from pytest_gpuleak.explain.lasting_roots import LastingRoots
from pytest_gpuleak.explain.roots.root import EDITABLE, RUNNING, Root
from pytest_gpuleak.heap.collector import epochs_supported
from tests.support.standin import Buffer, StandInArrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import ModuleType

    from pytest_gpuleak.explain.search import Explanation

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(not epochs_supported(), reason="this interpreter's collector has no epochs"),
]

USERS = "/project/leaky_app.py"


class Epoch:
    """An epoch of the collector, in which buffers are born."""

    def __init__(self, detector: EpochDetector) -> None:
        self._detector = detector

    def reach(self, roots: LastingRoots, fixtures: Sequence[object] = ()) -> list[Explanation]:
        """Look for the buffers that were born in the epoch."""
        arrays = self._detector.look()
        try:
            return list(roots.reach(arrays, (), fixtures).explanations.values())
        finally:
            arrays.clear()


@contextmanager
def _epoch() -> Iterator[Epoch]:
    gc.collect()
    detector = EpochDetector([StandInArrays()])
    detector.start()
    try:
        detector.open()
        yield Epoch(detector)
        detector.close()
    finally:
        detector.stop()
        gc.unfreeze()


@pytest.fixture
def epoch() -> Iterator[Epoch]:
    with _epoch() as one:
        yield one


@pytest.fixture
def roots(app: Any) -> LastingRoots:
    app.__file__ = USERS
    return LastingRoots(USERS.__eq__)


@pytest.fixture
def installed(make_module: Callable[[str, str], ModuleType]) -> Any:
    """A module that is not the user's own."""
    return make_module("installed_library", "CACHE = []\n")


@pytest.fixture(scope="module")
def store() -> dict[str, Any]:
    return {"items": []}


def texts(found: Iterable[Explanation]) -> list[str]:
    return [one.holder.text for one in found]


def test_a_users_global_leads_to_it(app: Any, roots: LastingRoots, epoch: Epoch) -> None:
    app.HISTORY.append(Buffer())
    app.CACHE["masks"] = [Buffer()]
    assert sorted(texts(epoch.reach(roots))) == ["leaky_app.CACHE['masks'][0]", "leaky_app.HISTORY[0]"]


def test_a_class_of_the_users_module_leads_to_it(app: Any, roots: LastingRoots, epoch: Epoch) -> None:
    app.Attention.masks["causal"] = Buffer()
    assert texts(epoch.reach(roots)) == ["leaky_app.Attention.masks['causal']"]


def test_a_wider_fixtures_value_leads_to_it_by_its_definition(
    roots: LastingRoots, store: dict[str, Any], epoch: Epoch, request: pytest.FixtureRequest
) -> None:
    store["items"].append(Buffer())
    definition = request._get_active_fixturedef("store")
    assert not epoch.reach(roots)
    found = epoch.reach(roots, (definition,))
    assert texts(found) == ["fixture 'store'['items'][0]"]
    assert found[0].holder.kind == "fixture"
    store["items"].clear()


def test_a_definition_without_a_value_leads_nowhere(app: Any, roots: LastingRoots, epoch: Epoch) -> None:
    app.HISTORY.append(Buffer())
    assert texts(epoch.reach(roots, (object(), type("Definition", (), {"cached_result": None})()))) == [
        "leaky_app.HISTORY[0]"
    ]


def test_a_root_that_a_search_has_found_is_known(installed: Any, roots: LastingRoots, epoch: Epoch) -> None:
    installed.CACHE.append(Buffer())
    assert not epoch.reach(roots)
    root = Root(EDITABLE, "module", "installed_library.CACHE", 1, "installed_library", "CACHE")
    roots.remember(root, installed.CACHE)
    assert texts(epoch.reach(roots)) == ["installed_library.CACHE[0]"]


def test_a_known_root_may_be_gone(
    installed: Any, app: Any, roots: LastingRoots, epoch: Epoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(EDITABLE, "module", "installed_library.CACHE", 1, "installed_library", "CACHE")
    roots.remember(root, installed.CACHE)
    monkeypatch.delattr(installed, "CACHE")
    app.HISTORY.append(Buffer())
    assert texts(epoch.reach(roots)) == ["leaky_app.HISTORY[0]"]


def test_what_does_not_outlive_a_test_is_not_remembered(installed: Any, roots: LastingRoots, epoch: Epoch) -> None:
    installed.CACHE.append(Buffer())
    root = Root(RUNNING, "frame", "frame of test_one", 0, "installed_library", "CACHE")
    roots.remember(root, installed.CACHE)
    assert not epoch.reach(roots)


def test_what_another_root_holds_is_left_out(app: Any, installed: Any, roots: LastingRoots, epoch: Epoch) -> None:
    app.HISTORY.append(Buffer())
    installed.CACHE.append(Buffer())
    assert texts(epoch.reach(roots)) == ["leaky_app.HISTORY[0]"]


def test_garbage_is_not_reached(app: Any, roots: LastingRoots, epoch: Epoch) -> None:
    buffer: Any = Buffer()
    buffer.me = buffer
    del buffer
    app.HISTORY.append(Buffer())
    assert texts(epoch.reach(roots)) == ["leaky_app.HISTORY[0]"]


def test_older_objects_are_told_by_id(app: Any, installed: Any, roots: LastingRoots) -> None:
    app.HISTORY.append(kept := Buffer())
    installed.CACHE.append(unmet := Buffer())
    with _epoch():
        found = roots.reach([], (), older={id(kept), id(unmet)})
    assert found.older == [kept]


def test_it_keeps_nothing_alive(app: Any, installed: Any, roots: LastingRoots, epoch: Epoch) -> None:
    class Box:
        """Can be referred to weakly."""

        item: Any = None

    box = Box()
    box.item = Buffer()
    app.HISTORY.append(box)
    witnesses = [weakref.ref(box), weakref.ref(box.item)]
    root = Root(EDITABLE, "fixture", "fixture 'box'")
    roots.remember(root, box)
    del box
    assert epoch.reach(roots)
    app.HISTORY.clear()
    assert [one() for one in witnesses] == [None, None]
    assert epoch.reach(roots) == []


def test_a_search_up_names_what_lasting_roots_hold(app: Any, installed: Any, roots: LastingRoots) -> None:
    installed.CACHE.append(Buffer())
    arrays: list[object] = [installed.CACHE[0]]
    found = roots.reach_up(arrays)
    assert texts(found.values()) == ["installed_library.CACHE[0]"]
    with _epoch() as epoch:
        installed.CACHE[:] = [Buffer()]
        assert texts(epoch.reach(roots)) == ["installed_library.CACHE[0]"]  # remembered


@pytest.mark.torch
def test_a_graph_leads_to_what_it_keeps(app: Any, roots: LastingRoots, epoch: Epoch) -> None:
    """A loss in a list keeps the model by its graph alone, which the collector does not show."""
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    weight = torch.ones(4, requires_grad=True)
    app.HISTORY.append((weight * 2).sum())
    arrays: list[object] = [app.HISTORY[0], weight]
    del weight
    from pytest_gpuleak.adapters.torch.references import TorchReferences

    assert texts(roots.reach(arrays, (TorchReferences(),)).explanations.values()) == [
        "leaky_app.HISTORY[0]",
        "leaky_app.HISTORY[0].grad_fn.next_functions[0][0].next_functions[0][0].variable",
    ]


@pytest.mark.torch
def test_a_walk_meets_what_native_code_keeps_for_older_objects(app: Any, roots: LastingRoots) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    from pytest_gpuleak.adapters.torch.references import TorchReferences

    weight, base = torch.ones(4, requires_grad=True), torch.ones(4)
    weight.sum().backward()
    gradient = weight.grad
    app.HISTORY.extend([(weight * 2).sum(), base[:2]])
    wanted = {id(weight), id(gradient), id(base)}
    with _epoch():
        found = roots.reach([], (TorchReferences(),), older=wanted)
    assert set(map(id, found.older)) == wanted

"""Named results of torch's operations: tuples that the collector does not track."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain import native_references
from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.rootless import TIMEOUT_ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.torch, pytest.mark.interpreter, pytest.mark.usefixtures("small_heap")]


def test_results_in_a_global_list(app: Any, torch: Any) -> None:
    app.HISTORY.append(torch.zeros(2, 2).max(1))
    assert not gc.is_tracked(app.HISTORY[0])
    box = [app.HISTORY[0].values, app.HISTORY[0].indices]
    found = [item.holder for item in explain(box, ignore={id(sys._getframe())})]
    assert [holder.text for holder in found] == ["leaky_app.HISTORY[0].values", "leaky_app.HISTORY[0].indices"]
    assert all(holder.kind == "module" for holder in found)
    assert eval(found[0].text, {"leaky_app": app}) is box[0]


def test_results_as_a_global(app: Any, torch: Any) -> None:
    app.BEST = torch.topk(torch.zeros(4), 2)
    box = [app.BEST.values]
    assert explain(box, ignore={id(sys._getframe())})[0].holder.text == "leaky_app.BEST.values"


def test_results_in_a_local_of_a_running_function(torch: Any) -> None:
    def run() -> str:
        best = torch.topk(torch.zeros(4), 2)
        box = [best.values]
        return explain(box)[0].holder.text

    assert run().endswith("local 'best'.values")


def test_a_walk_that_was_cut_blames_no_native_code(app: Any, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def take_long(orphans: Any, extra: Any, budget: Any) -> list[Any]:
        budget.worked(budget.left)
        return []

    app.BEST = torch.topk(torch.zeros(4), 2)
    monkeypatch.setattr(native_references, "finders", lambda: [take_long])
    (found,) = explain([app.BEST.values])
    assert (found.holder.kind, found.holder.root) == ("unknown", TIMEOUT_ROOT)


@pytest.fixture
def keep() -> Iterator[Callable[[object], None]]:
    """Let native code keep an object until the test ends."""
    kept: list[int] = []

    def keep(value: object) -> None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
        kept.append(id(value))

    yield keep
    for address in kept:
        ctypes.pythonapi.Py_DecRef(ctypes.cast(address, ctypes.py_object))


def test_an_array_that_native_code_alone_holds_is_not_held_by_the_searchs_own_dicts(
    keep: Callable[[object], None],
) -> None:
    """A dict of NumPy arrays alone is untracked: the walk met the search's own, and told its key, an address."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    box = [numpy.ones(3)]
    keep(box[0])
    (found,) = explain(box, ignore={id(sys._getframe())})
    assert found.holder.text == "C++ -> numpy.ndarray"


def test_arguments_that_native_code_alone_holds_may_be_given_to_atexit(keep: Callable[[object], None]) -> None:
    box: list[dict[str, int]] = [{"batch": 1}]
    keep((box[0],))
    (found,) = explain(box, ignore={id(sys._getframe())})
    assert found.holder.text == "C++ (atexit, or another list of callbacks) -> tuple[0]"

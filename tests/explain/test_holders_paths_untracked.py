"""Named results of torch's operations: tuples that the collector does not track."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from pytest_gpuleak.explain import native_references
from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.rootless import TIMEOUT_ROOT

pytestmark = [pytest.mark.torch, pytest.mark.interpreter]


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


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
    class Long:
        def find(self, orphans: Any, extra: Any, budget: Any) -> list[Any]:
            budget.worked(budget.left)
            return []

    app.BEST = torch.topk(torch.zeros(4), 2)
    monkeypatch.setattr(native_references, "finders", lambda: [Long()])
    (found,) = explain([app.BEST.values])
    assert (found.holder.kind, found.holder.root) == ("unknown", TIMEOUT_ROOT)

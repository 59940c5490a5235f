"""Re-runs of tests that use torch itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [pytest.mark.torch, pytest.mark.interpreter, pytest.mark.usefixtures("forked")]


@pytest.fixture(autouse=True)
def torch() -> None:
    pytest.importorskip("torch")


@pytest.mark.usefixtures("cold")
def test_nothing_is_imported_into_the_test(run: Runner) -> None:
    found = run(
        """
        import sys, torch
        KEPT, BEFORE = [], set()

        def test_leaks():
            KEPT.append(torch.ones(10) * 2)
            BEFORE.update(sys.modules)

        def test_next():
            added = {name for name in set(sys.modules) - BEFORE if name.startswith("torch")}
            assert added <= {"torch.utils._python_dispatch"}, added
        """,
        apart=True,
    )
    assert found.verdicts == {"test_leaks": "leaked", "test_next": "clean"}


def test_whatever_stands_around_a_leak_it_is_found_with_its_line(run: Runner) -> None:
    """A mock in the place of torch, gradients of a shared model, a default device, a mode of the user's, a view."""
    found = run(
        """
        import pytest, sys, torch
        from torch.overrides import TorchFunctionMode
        from unittest import mock
        KEPT, LAST = [], []

        def test_mocked(monkeypatch):
            monkeypatch.setitem(sys.modules, "torch", mock.MagicMock())
            KEPT.append(torch.ones(10))

        def test_absent():
            with mock.patch.dict(sys.modules, {"torch": None}):
                KEPT.append(torch.ones(10) + 1)

        @pytest.fixture(scope="session")
        def model():
            return torch.nn.Linear(8, 8)

        def test_trains(model):
            model(torch.ones(4, 8)).sum().backward()
            KEPT.append(torch.ones(3))

        def test_next(model):
            pass

        class Mine(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))

        def test_device():
            torch.set_default_device("cpu")
            try:
                KEPT.append(torch.ones(3))
            finally:
                torch.set_default_device(None)

        def test_mode():
            with Mine():
                KEPT.append(torch.ones(3))

        def test_view():
            logits = torch.ones(256, 256)
            LAST.append(logits[0, 0])

        def test_clean():
            assert torch.ones(10).sum() == 10
            with Mine(), torch.inference_mode():
                torch.ones(3)
        """,
        apart=True,
    )
    leaking = ("test_mocked", "test_absent", "test_trains", "test_device", "test_mode", "test_view")
    assert found.verdicts == dict.fromkeys(leaking, "leaked") | dict.fromkeys(("test_next", "test_clean"), "clean")
    trained = found.finding("test_trains")
    assert (trained["kind"], trained["count"], trained["bytes_per_run"]) == ("growing", 1, 12)
    assert trained["tensors"][0]["created"]["code"] == "KEPT.append(torch.ones(3))"
    view = found.finding("test_view")
    assert (view["count"], view["bytes"]) == (1, 256 * 256 * 4)
    assert view["tensors"][0]["created"]["code"] == "logits = torch.ones(256, 256)"

"""What only a CUDA device can show. Skipped, with the reason, where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def cuda() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch


def test_a_tensor_left_on_the_device(run: Runner) -> None:
    found = run(
        """
        import torch
        KEPT = []

        def test_leaks():
            KEPT.append(torch.ones(256, 256, device="cuda:0"))

        def test_clean():
            assert torch.ones(256, 256, device="cuda:0").sum().item() == 65536

        def test_linear():
            torch.nn.Linear(64, 64, device="cuda:0")(torch.ones(8, 64, device="cuda:0")).sum().backward()
        """,
        apart=True,
    )
    assert found.verdicts == {"test_leaks": "leaked", "test_clean": "clean", "test_linear": "clean"}
    finding = found.finding("test_leaks")
    assert (finding["device"], finding["bytes"]) == ("cuda:0", 256 * 256 * 4)
    assert "torch.ones" in finding["tensors"][0]["created"]["code"]


def test_a_device_that_the_tests_do_not_use_is_not_touched(run: Runner) -> None:
    found = run(
        """
        import torch
        KEPT = []

        def test_leaks():
            KEPT.append(torch.ones(10))

        def test_untouched():
            assert not torch.cuda.is_initialized()
        """,
        apart=True,
    )
    assert found.verdicts == {"test_leaks": "leaked", "test_untouched": "clean"}

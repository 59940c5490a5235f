"""torch's CPU storages, counted from the results of its operators."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pytest_gpuleak.adapters.torch.host_storages import TRACED, counted_storages

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Blocks:
    """What is counted now, and the most."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.most = 0

    def add(self, number: int, size: int) -> None:
        self.sizes[number] = size
        self.most = max(self.most, self.now)

    def remove(self, number: int) -> None:
        self.sizes.pop(number, None)

    @property
    def now(self) -> int:
        return sum(self.sizes.values())


def count(work: Any) -> tuple[int, int, list[str]]:
    """The bytes at the end of the work and at its peak, and what was not counted."""
    blocks, lacks = Blocks(), list[str]()
    with counted_storages(blocks, lacks):
        kept = work()
        now = blocks.now
    assert blocks.sizes == {}
    del kept
    return now, blocks.most, lacks


OLD = torch.ones(64)


def in_place() -> Any:
    OLD.add_(1)
    return OLD.view(8, 8), OLD.detach(), OLD[:4]


def resized() -> Any:
    tensor = torch.empty(4)
    tensor.resize_(16)
    return tensor


def with_gradient() -> Any:
    weight = torch.ones(16, requires_grad=True)
    (weight * 2).sum().backward()
    return weight


def in_a_thread() -> Any:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(torch.ones(8)))
    thread.start()
    thread.join()
    return made


@pytest.mark.parametrize(
    ("work", "kept"),
    [
        (lambda: torch.ones(16), 64),
        (lambda: torch.tensor([1.0, 2.0]), 8),
        (lambda: torch.ones(16)[:2], 64),
        (in_place, 0),
        (lambda: OLD + 1, 256),
        (lambda: torch.from_numpy(OLD.numpy()).add_(1), 0),
        (lambda: torch.ones(4, device="meta"), 0),
        (lambda: torch.eye(4).to_sparse(), None),
        (resized, 64),
        (with_gradient, 128),
        (in_a_thread, 32),
        (lambda: torch.nn.Linear(4, 4, bias=False), 64),
    ],
)
def test_new_storages_are_counted(work: Any, kept: int | None) -> None:
    now, most, lacks = count(work)
    assert kept is None or now == kept
    assert most >= now
    assert lacks == []


def test_what_has_died_is_not() -> None:
    now, most, _ = count(lambda: [torch.ones(1024) for _ in range(3)] and None)
    assert (now, most) == (0, 3 * 4096)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_a_trace_is_left_alone() -> None:
    _, _, lacks = count(lambda: torch.jit.trace(lambda x: x * 2, (torch.ones(2),)))
    assert lacks == [TRACED]

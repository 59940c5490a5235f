"""Which storages operators make, told by their arguments and results alone."""

from __future__ import annotations

import copy
import io
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuleak.adapters.torch.live_storages import LiveStorages

if TYPE_CHECKING:
    from collections.abc import Callable

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

OLD = torch.ones(4, 4)
SPARSE = torch.eye(4).to_sparse()
SAVED = io.BytesIO()
torch.save(torch.ones(100), SAVED)


def from_a_file() -> Any:
    SAVED.seek(0)
    return torch.load(SAVED)


NONE_MADE: Final[dict[str, Callable[[], Any]]] = {
    "in place": lambda: OLD.mul_(1),
    "views": lambda: (OLD.t(), OLD[0], OLD.detach(), OLD.reshape(-1), OLD.split(2)),
    "unsafe view": lambda: torch.ops.aten._unsafe_view(OLD, [16]),
    "given as out": lambda: torch.add(OLD, 0, out=OLD),
    "a list in place": lambda: torch._foreach_mul_([OLD], 1),
    "another tensor's storage": lambda: torch._C.TensorBase.untyped_storage(OLD.view(16)),
    "parts of a sparse one": lambda: (SPARSE._values(), SPARSE._indices()),
}
MADE: Final[dict[str, tuple[Callable[[], Any], list[int]]]] = {
    "plain": (lambda: OLD + 1, [64]),
    "values of Python's": (lambda: torch.tensor([1.0, 2.0]), [8]),
    "several at once": (lambda: torch._foreach_add([OLD, OLD], 1), [64, 64]),
    "views of one that is new": (lambda: (OLD + 1).split(2), [64]),
    "resized": (lambda: torch.empty(4).resize_(8), [16, 32]),
    "from a file": (from_a_file, [0, 400]),
    "of a sparse one": (lambda: [SPARSE * 2], [64, 16]),
}


def made_in(work: Callable[[], Any]) -> list[int]:
    """Return the sizes of the storages that work makes, and what is left of them once it has ended."""
    noted, ended = list[int](), list[int]()
    live = LiveStorages(torch, ended.append)

    class Note(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            results = made if isinstance(made, (list, tuple)) else [made] if isinstance(made, torch.Tensor) else []
            parts = [part for one in results for part in live.parts(one)]
            for _, storage, before in live.made_by(func, parts, (args, kwargs)):
                if storage.nbytes() != before:
                    noted.append(storage.nbytes())
                    live.hold(storage, storage.nbytes())
            return made

    with Note():
        work()
    assert live.close() == []
    assert set(ended) <= set(noted)
    return noted


@pytest.mark.parametrize("kind", NONE_MADE)
def test_what_was_there_before_is_not_made(kind: str) -> None:
    assert made_in(NONE_MADE[kind]) == []


@pytest.mark.parametrize("kind", MADE)
def test_what_is_new_is_made_once(kind: str) -> None:
    work, sizes = MADE[kind]
    assert sorted(made_in(work)) == sorted(sizes)


def test_a_copy_of_a_module_is_its_own() -> None:
    assert 64 in made_in(lambda: copy.deepcopy(torch.nn.Linear(4, 4)))

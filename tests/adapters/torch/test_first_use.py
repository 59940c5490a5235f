"""The call that torch makes when it initialises a device first: queued, told, and taken away."""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.torch.first_use import TorchFirstUse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CUDA = """
_initialized = False
_queued_calls = [(EARLIER, [])]

def _lazy_init():
    for call, lines in _queued_calls:
        call()
        "".join(lines)
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    """A package `torch` on the path, not imported, and what is told."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "cuda.py").write_text("def EARLIER(): raise ValueError('queued earlier')\n" + CUDA)
    monkeypatch.syspath_prepend(str(tmp_path))
    told: list[tuple[str, str]] = []
    watch = TorchFirstUse(lambda library, device: told.append((library, device)))
    yield types.SimpleNamespace(watch=watch, told=told, file=package / "cuda.py")
    watch.stop()
    for name in ("torch", "torch.cuda"):
        sys.modules.pop(name, None)


def load() -> Any:
    return importlib.import_module("torch.cuda")


def initialise(cuda: Any) -> None:
    with pytest.raises(ValueError, match="queued earlier"):
        cuda._lazy_init()


def test_it_is_queued_first_as_soon_as_torch_is_imported(torch: Any) -> None:
    cuda = load()
    assert torch.told == []
    initialise(cuda)
    assert torch.told == [("torch.cuda", "cuda")]
    assert "exec_module" not in vars(cuda.__loader__)


def test_it_is_queued_again_when_the_module_is_reloaded(torch: Any) -> None:
    initialise(importlib.reload(load()))
    assert torch.told == [("torch.cuda", "cuda")]


def test_it_is_queued_once_however_often_is_looked(torch: Any) -> None:
    cuda = load()
    torch.watch.look()
    torch.watch.look()
    assert len(cuda._queued_calls) == 2


def test_torch_that_was_imported_before(torch: Any) -> None:
    torch.watch.stop()
    cuda = load()
    torch.watch.look()
    initialise(cuda)
    assert torch.told == [("torch.cuda", "cuda")]


def test_a_device_that_was_initialised_before_is_told_at_once(torch: Any) -> None:
    torch.watch.stop()
    load()._initialized = True
    torch.watch.look()
    assert torch.told == [("torch.cuda", "cuda")]


def test_an_error_of_what_is_told_does_not_reach_torch(torch: Any) -> None:
    torch.watch._tell = lambda library, device: 1 / 0
    initialise(load())


def test_an_error_of_the_import_is_the_users(torch: Any) -> None:
    torch.file.write_text("raise KeyError('no such library')\n")
    with pytest.raises(KeyError, match="no such library"):
        load()


def test_a_torch_without_a_queue_is_left_alone(torch: Any) -> None:
    torch.file.write_text("_queued_calls = ()\n")
    assert load()._queued_calls == ()


@pytest.mark.parametrize(
    "stub", [None, 5, object(), types.ModuleType("torch.cuda")], ids=lambda stub: type(stub).__name__
)
def test_a_stub_is_left_alone(torch: Any, monkeypatch: pytest.MonkeyPatch, stub: object) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", stub)
    torch.watch.look()
    assert torch.told == []


def test_nothing_stays(torch: Any) -> None:
    cuda = load()
    torch.watch.stop()
    torch.watch.stop()
    assert torch.watch not in sys.meta_path
    assert len(cuda._queued_calls) == 1


def test_another_module_is_found_by_the_others(torch: Any) -> None:
    assert torch.watch.find_spec("torch.nn", None) is None
    assert torch.watch.find_spec("torch.xpu", [str(torch.file.parent)]) is None  # there is none


@pytest.mark.torch
def test_the_real_torch_has_the_queue() -> None:
    cuda: Any = importlib.import_module("torch.cuda")
    assert type(cuda._queued_calls) is list
    assert all(callable(call) and type(lines) is list for call, lines in cuda._queued_calls)
    assert type(cuda._initialized) is bool

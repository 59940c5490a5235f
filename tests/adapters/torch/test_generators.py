"""Generators in modules' globals keep their state over a re-run, at the cost of a glance at each library's module."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import types
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Create and import a module in this folder below `tmp_path`."""

    def create(folder: str) -> types.ModuleType:
        file = tmp_path / folder / "noise.py"
        file.parent.mkdir(parents=True)
        file.write_text("import torch\nGENERATOR = None\n", encoding="utf-8")
        name = f"noise_in_{folder.replace('-', '_')}"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return create


def is_restored(generator: Any) -> bool:
    from pytest_gpuleak.adapters.torch.states import keep_states

    before = generator.get_state().tolist()
    restores = keep_states()
    generator.manual_seed(generator.initial_seed() + 1)
    assert generator.get_state().tolist() != before
    for restore in restores:
        restore()
    restored: bool = generator.get_state().tolist() == before
    return restored


def test_a_global_of_the_user_s_module_may_be_set_at_any_time(load: Callable[[str], Any]) -> None:
    torch = pytest.importorskip("torch")
    module = load("project")
    module.GENERATOR = torch.Generator()
    assert is_restored(module.GENERATOR)
    module.GENERATOR = None
    assert is_restored(torch.default_generator)
    module.GENERATOR = torch.Generator()
    assert is_restored(module.GENERATOR)


def test_a_library_s_module_is_read_again_when_it_has_gained_a_name(load: Callable[[str], Any]) -> None:
    torch = pytest.importorskip("torch")
    module = load("site-packages")
    assert is_restored(torch.default_generator)
    module.ADDED = torch.Generator()
    assert is_restored(module.ADDED)
    assert is_restored(module.ADDED)

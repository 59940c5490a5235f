"""A module that stands for the user's application: what tests hang on it are globals that a path can start from."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], types.ModuleType]]:
    """Writes a module's source, imports it, and forgets it after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def make(name: str, source: str) -> types.ModuleType:
        (tmp_path / f"{name}.py").write_text(source)
        made.append(name)
        return importlib.import_module(name)

    yield make
    for name in made:
        sys.modules.pop(name).__dict__.clear()


@pytest.fixture
def app(make_module: Callable[[str, str], types.ModuleType]) -> Any:
    """An importable module; it is Any so that tests can hang what they like on it."""
    return make_module("leaky_app", "HISTORY = []\nCACHE: dict = {}\n\n\nclass Attention:\n    masks = {}\n")

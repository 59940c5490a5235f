"""What is installed is read once, and a test's own folders each time."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING

from tests.support import distributions

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_is_remembered_is_what_would_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "distributions", importlib.metadata.distributions)
    distributions.remember()
    for _ in range(2):
        known, read = list(importlib.metadata.distributions()), list(distributions._distributions())
        assert [found.metadata["Name"] for found in known] == [found.metadata["Name"] for found in read]
        assert [found.version for found in known] == [found.version for found in read]
        assert [list(found.entry_points) for found in known] == [list(found.entry_points) for found in read]
        assert [list(map(str, found.files or [])) for found in known] == [
            list(map(str, found.files or [])) for found in read
        ]
    (pytest_itself,) = importlib.metadata.distributions(name="pytest")
    assert pytest_itself.metadata["Name"] == "pytest"
    (known_pytest,) = (found for found in known if found.metadata["Name"] == "pytest")
    assert known_pytest.files is known_pytest.files


def test_a_folder_of_the_tests_own_is_read_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "distributions", importlib.metadata.distributions)
    distributions.remember()
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("first", "second"):
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        importlib.invalidate_caches()
        assert name in {found.metadata["Name"] for found in importlib.metadata.distributions()}

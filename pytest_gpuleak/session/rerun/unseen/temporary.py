"""Remove folders that pytest makes for a re-run (`tmp_path`), so that later tests' folders keep their names."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.session.rerun.unseen.restoring import Restore, nothing

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def keep_temporary_folders(item: pytest.Item) -> Restore:
    """Note the folders below pytest's base; folders that are new afterwards are removed.

    None is removed if the re-run sets up a higher-scoped fixture that stays, because the fixture may have made one.
    """
    factory: Any = getattr(item.config, "_tmp_path_factory", None)
    base: Path | None = getattr(factory, "_basetemp", None)
    if factory is None:
        return nothing
    numbers: dict[str, int] | None = getattr(factory, "_next_number", None)  # pytest 9.1
    counted = None if numbers is None else dict(numbers)
    before = {} if base is None else _entries(base)
    fixtures = _set_up(item)

    def restore() -> None:
        made_in: Path | None = factory._basetemp
        if made_in is None or not _set_up(item) <= fixtures:
            return
        for name, target in _entries(made_in).items():
            if before.get(name, name) != target:  # a new folder has no entry, a new link another target
                _put_back(made_in / name, before.get(name))
        if numbers is not None and counted is not None:
            numbers.clear()
            numbers.update(counted)

    return restore


def _entries(folder: Path) -> dict[str, str | None]:
    """Return the folder's entries by name; for a link (`test_it_current`) its target."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        # os.readlink on a plain string: `Path.readlink` would create an object for each.
        return {entry.name: os.readlink(entry.path) if entry.is_symlink() else None for entry in entries}  # noqa: PTH115
    return {}


def _put_back(path: Path, target: str | None) -> None:
    with contextlib.suppress(OSError):
        if path.is_symlink():
            path.unlink()
            if target is not None:
                path.symlink_to(target)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _set_up(item: pytest.Item) -> frozenset[int]:
    hooks: Any = item.config.pluginmanager.get_plugin("gpuleak-runtest")
    found: frozenset[int] = hooks.wider_fixtures()
    return found

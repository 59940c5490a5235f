from __future__ import annotations

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Leave this project out of a run of the torch example, whose folder it lies in."""
    return True if config.rootpath != HERE and HERE in collection_path.parents else None

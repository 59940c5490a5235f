"""What the tests of confirming share."""

from __future__ import annotations

import importlib

import pytest


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of arrays whose holders were searched for, an entry a search."""
    # By its full name: a run in this process may have left an older module as the package's attribute.
    crowds = importlib.import_module("pytest_gpuleak.explain.crowds")
    found: list[int] = []
    original = crowds.explain_crowd

    def noted(targets: list[object], **options: object) -> object:
        found.append(len(targets))
        return original(targets, **options)

    monkeypatch.setattr(crowds, "explain_crowd", noted)
    return found

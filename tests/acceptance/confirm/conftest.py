"""What the tests of confirming share."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def install(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Installs the package `library` of these modules, whose globals are not followed as the user's own are."""

    def install_modules(sources: dict[str, str]) -> None:
        folder = pytester.path / "lib" / "site-packages" / "library"
        folder.mkdir(parents=True)
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(folder.parent))
        monkeypatch.setenv("PYTHONPATH", str(folder.parent), prepend=":")

    return install_modules


def forget_roots(patch: pytest.MonkeyPatch) -> None:
    """Let no walk from lasting roots name a holder, and no search up: only the search of the heap does."""
    # By its full name: a run in this process may have left an older module as the package's attribute.
    module = importlib.import_module("pytest_gpuleak.explain.lasting_roots")
    patch.setattr(module.LastingRoots, "reach", lambda *_: module.Reached({}, []))
    patch.setattr(module.LastingRoots, "reach_up", lambda *_: {})


@pytest.fixture
def without_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lasting root is known to lead to anything."""
    forget_roots(monkeypatch)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of arrays whose holders were searched for, an entry a search."""
    # By its full name: a run in this process may have left an older module as the package's attribute.
    crowds = importlib.import_module("pytest_gpuleak.explain.explain")
    found: list[int] = []
    original = crowds.explain_crowd

    def noted(targets: list[object], **options: object) -> object:
        found.append(len(targets))
        return original(targets, **options)

    monkeypatch.setattr(crowds, "explain_crowd", noted)
    return found

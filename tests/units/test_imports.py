"""The plugin's own modules are not loaded by pytest's rewriting hook, and no other module is touched."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.plugin import _import_plainly, _OwnModules

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    import pytest

SUITE = """
    import sys

    def test_loaders():
        from _pytest.assertion.rewrite import AssertionRewritingHook

        ours = {name: module for name, module in sys.modules.items() if name.startswith("pytest_gpuleak.")}
        rewritten = {name for name, module in ours.items() if isinstance(module.__loader__, AssertionRewritingHook)}
        assert "pytest_gpuleak.session" in ours and not {"pytest_gpuleak.session", "pytest_gpuleak.monitor"} & rewritten
        assert isinstance(sys.modules["helper"].__loader__, AssertionRewritingHook)
"""


def test_a_run_loads_the_check_plainly_and_a_users_plugin_as_ever(tmp_path: pathlib.Path) -> None:
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "test_it.py").write_text(textwrap.dedent(SUITE))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "helper", "--gpu-leak", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


def test_only_what_was_added_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [finder for finder in sys.meta_path if finder != _OwnModules]
    monkeypatch.setattr(sys, "meta_path", [*before])
    undo: list[Callable[[], None]] = []
    config: Any = SimpleNamespace(add_cleanup=undo.append)
    _import_plainly(config)
    _import_plainly(config)  # a run within the run
    assert _OwnModules in sys.meta_path[:1]
    assert len(undo) == 1
    undo[0]()
    assert sys.meta_path == before


def test_other_packages_are_left_to_others() -> None:
    assert _OwnModules.find_spec("pytest_gpuleak") is None
    assert _OwnModules.find_spec("pytest_gpuleaks.other") is None
    assert _OwnModules.find_spec("json.decoder") is None

"""The plugin's own modules are not loaded by pytest's rewriting hook, and no other module is touched."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.plugin import OwnModules

if TYPE_CHECKING:
    import pathlib

SUITE = """
    import sys

    def test_loaders():
        from _pytest.assertion.rewrite import AssertionRewritingHook

        ours = {name: module for name, module in sys.modules.items() if name.startswith("pytest_gpuleak.")}
        rewritten = {name for name, module in ours.items() if isinstance(module.__loader__, AssertionRewritingHook)}
        checked = {"pytest_gpuleak.session", "pytest_gpuleak.session.run", "pytest_gpuleak.engine.run_tracker"}
        assert checked <= ours.keys() and not checked & rewritten
        assert not any(type(finder).__module__.startswith("pytest_gpuleak") for finder in sys.meta_path)
        assert isinstance(sys.modules["helper"].__loader__, AssertionRewritingHook)
"""


def test_a_run_loads_the_check_plainly_and_a_users_plugin_as_ever(tmp_path: pathlib.Path) -> None:
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "test_it.py").write_text(textwrap.dedent(SUITE))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "helper", "--gpu-leak", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


def test_the_finder_is_there_for_the_own_imports_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [*sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", [*before])
    with OwnModules():
        with OwnModules():  # a run within the run
            assert sys.meta_path[2:] == before
        assert isinstance(sys.meta_path[0], OwnModules)
        assert sys.meta_path[1:] == before
    assert sys.meta_path == before


def test_an_import_that_fails_takes_the_finder_along(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [*sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", [*before])
    with pytest.raises(ImportError), OwnModules():
        raise ImportError
    assert sys.meta_path == before


def test_other_packages_are_left_to_others() -> None:
    finder = OwnModules()
    assert finder.find_spec("pytest_gpuleak", None) is None
    assert finder.find_spec("pytest_gpuleaks.other", ["/"]) is None
    assert finder.find_spec("json.decoder", ["/"]) is None

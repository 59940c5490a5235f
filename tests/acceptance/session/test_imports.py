"""The plugin's own modules are not loaded by pytest's rewriting hook, and every other module is loaded as ever."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]

SUITE = """
    import sys

    def test_loaders():
        from _pytest.assertion.rewrite import AssertionRewritingHook

        import pytest_gpuleak.reports.terminal.section  # as a run with a leak does in its middle
        ours = {name: module for name, module in sys.modules.items() if name.startswith("pytest_gpuleak.")}
        rewritten = {name for name, module in ours.items() if isinstance(module.__loader__, AssertionRewritingHook)}
        assert "pytest_gpuleak.session.run" in ours and rewritten == {"pytest_gpuleak.plugin"}
        assert isinstance(sys.modules["helper"].__loader__, AssertionRewritingHook)
        assert isinstance(sys.modules["test_it"].__loader__, AssertionRewritingHook)
"""


def test_a_run_loads_the_check_plainly_and_a_users_plugin_as_ever(tmp_path: pathlib.Path) -> None:
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "test_it.py").write_text(textwrap.dedent(SUITE))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "helper", "--gpu-leak", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


BREAKING = {
    "The floors": ("model/text.py", "pytest_gpuleak.session.run"),
    "Only pytest's side knows pytest": ("engine/suspect.py", "pytest"),
    "Libraries are imported by their adapters": ("explain/search.py", "torch"),
    "Report formats do not know each other": ("reports/markdown.py", "pytest_gpuleak.reports.sarif"),
}
"""For each contract a module, and what it must not import."""


@pytest.mark.slow
def test_an_import_that_breaks_a_contract_fails(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("importlinter")
    shutil.copytree(ROOT / "pytest_gpuleak", tmp_path / "pytest_gpuleak", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, imported in BREAKING.values():
        with (tmp_path / "pytest_gpuleak" / module).open("a") as file:
            file.write(f"\nimport {imported}\n")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*command, "--no-cache"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    # Below each contract's underlined name stand the imports that break it.
    _, *parts = re.split(r"^(\S.*)\n-+$", done.stdout.partition("Broken contracts")[2], flags=re.MULTILINE)
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    for contract, (module, imported) in BREAKING.items():
        (name,) = [name for name in told if name.startswith(contract)]
        importer = f"pytest_gpuleak.{module.removesuffix('.py').replace('/', '.')}"
        assert f"{importer} -> {imported} (l." in " ".join(told[name].split()), done.stdout

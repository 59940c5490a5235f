"""The recipes for developers, each followed in a copy of the package, and the names that the architecture page uses."""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.conftest import OFF

if TYPE_CHECKING:
    from tests.conftest import Runner

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "pytest_gpuleak"
PAGES = ROOT / "docs" / "developing"
BLOCK = re.compile(r"^<!-- recipe: ([^;]+); ([^:]+): (\S+) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COPIED = ("pytest_gpuleak", "pyproject.toml", "README.md", "conftest.py", "tests/__init__.py", "tests/conftest.py",
          "tests/support/__init__.py", "tests/support/distributions.py", "tests/support/leaks.py", "tests/support/standin.py")  # fmt: skip
"""What a recipe's test takes: the package, and what the tests share."""


class Block(NamedTuple):
    """A block of a recipe."""

    recipe: str
    what: str
    path: str
    text: str


BLOCKS = [Block(*found) for found in BLOCK.findall((PAGES / "adding.md").read_text(encoding="utf-8"))]
RECIPES = sorted({block.recipe for block in BLOCKS if block.what != "project file"})


def copy_package(folder: Path) -> None:
    """Copy what the recipes change, compiled files too: each run would compile the package again."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)


def follow(block: Block, folder: Path) -> None:
    """Do what a block says: write a file, or change a file."""
    path = folder / block.path
    if block.what == "change":
        path.write_text(changed(path.read_text(encoding="utf-8"), block.text), encoding="utf-8")
    else:
        assert not path.exists(), f"{block.path} is no new file"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(block.text, encoding="utf-8")


def follow_tests(recipe: str, folder: Path) -> list[str]:
    """Write the tests of a recipe, and return their paths."""
    tests = [block for block in BLOCKS if block.recipe == recipe and block.path.startswith("tests/")]
    assert tests
    for block in tests:
        follow(block, folder)
    return [block.path for block in tests]


def changed(text: str, change: str) -> str:
    """Change a file's text as the parts of a ``diff`` block say, each at the one place where it fits."""
    for part in change.split("@@\n"):
        lines = part.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        found = re.findall(rf"^{re.escape(before)}", text, re.MULTILINE)
        assert len(found) == 1, f"{len(found)} places have\n{before}"
        text = re.sub(rf"^{re.escape(before)}", lambda _, after=after: after, text, flags=re.MULTILINE)  # type: ignore[misc]
    return text


def run_tests(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder with the package that lies there, which its conftest.py checks."""
    guard = folder / "check_copy.py"
    guard.write_text(f"import pytest_gpuleak\nassert pytest_gpuleak.__file__.startswith({str(folder)!r})\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-p",
        "no:hypothesispytest",
        "-p",
        "check_copy",
        *OFF,
    ]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow
def test_without_what_a_recipe_adds_its_test_fails(tmp_path: Path) -> None:
    copy_package(tmp_path)
    paths = {recipe: follow_tests(recipe, tmp_path) for recipe in RECIPES}
    done = run_tests(
        tmp_path, "-rfE", "--continue-on-collection-errors", *[path for each in paths.values() for path in each]
    )
    failed = set(re.findall(r"^(?:FAILED|ERROR) ([^\s:]+)", done.stdout, re.MULTILINE))
    for recipe, its_paths in paths.items():
        assert failed & set(its_paths), f"{recipe}:\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_the_recipes_work(tmp_path: Path) -> None:
    copy_package(tmp_path)
    for block in BLOCKS:
        if block.what != "project file":
            follow(block, tmp_path)
    paths = [block.path for block in BLOCKS if block.path.startswith("tests/")]
    done = run_tests(tmp_path, "-rp", *paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {found.partition("::")[0] for found in re.findall(r"^PASSED (\S+)", done.stdout, re.MULTILINE)} == set(paths)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_needs_no_other(recipe: str) -> None:
    """Its changes fit the package as it is, and none of its blocks imports what another adds."""
    added = {
        block.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for block in BLOCKS
        if block.recipe != recipe and block.what == "new file"
    }
    files: dict[str, str] = {}
    for block in BLOCKS:
        if block.recipe == recipe:
            assert [module for module in added if re.search(rf"\b{re.escape(module)}\b", block.text)] == [], block.path
            if block.what == "change":
                before = files.get(block.path) or (ROOT / block.path).read_text(encoding="utf-8")
                files[block.path] = changed(before, block.text)


@pytest.mark.slow
def test_all_recipes_together_keep_to_the_rules(tmp_path: Path) -> None:
    copy_package(tmp_path)
    for block in BLOCKS:
        if block.what != "project file":
            follow(block, tmp_path)
    files = [block.path for block in BLOCKS if block.path.endswith(".py") and block.what != "project file"]
    for tool, *arguments in (
        ["ruff", "check", "--no-cache", *files],
        ["ruff", "format", "--no-cache", "--check", *files],
        ["mypy", "--cache-dir", "/dev/null", *files],
        ["lint-imports", "--no-cache"],
    ):
        program = shutil.which(tool, path=Path(sys.executable).parent)
        if program is None:
            pytest.skip(f"{tool} is not installed for this Python (requirements/checks.txt)")
        done = subprocess.run(
            [program, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


APP = """
CACHE = []
"""
SUITE = """
import app


def test_fills_the_cache():
    app.CACHE.append(Buffer(2**21))
"""


def test_the_settle_hook_frees_what_the_project_keeps(run: Runner, pytester: pytest.Pytester) -> None:
    (block,) = [block for block in BLOCKS if block.what == "project file"]
    assert block.path == "conftest.py"
    pytester.makepyfile(app=APP)
    assert run(SUITE).verdicts == {"test_fills_the_cache": "leaked"}
    with (pytester.path / block.path).open("a", encoding="utf-8") as conftest:
        conftest.write(f"\n\n{block.text}")
    assert run("").verdicts == {"test_fills_the_cache": "clean"}


def test_the_page_has_six_recipes() -> None:
    text = (PAGES / "adding.md").read_text(encoding="utf-8")
    wanted = ["hint", "host counter", "framework", "report format", "option", "settle step"]
    assert re.findall(r"^## An? (.*)$", text, re.MULTILINE) == wanted
    assert sorted(wanted) == RECIPES
    assert len(BLOCKS) == text.count("<!-- recipe:")


def names_of(path: Path) -> set[str]:
    """The names that a module defines, and of its classes the members too (``Class.member``)."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{member}" for member in _stored(node)}
        names |= _stored(node) if isinstance(node, ast.Module) else set()
    return names


def _stored(node: ast.AST) -> set[str]:
    """What is defined or assigned in a node, but for what is in the functions and classes outside of it."""
    names = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.ClassDef | ast.FunctionDef):
            names.add(inner.name)
        elif isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Store):
            names.add(inner.id if isinstance(inner, ast.Name) else inner.attr)
    return names


@functools.cache
def names_of_package() -> set[str]:
    """The names that the package's modules have and define."""
    paths = list(PACKAGE.rglob("*.py"))
    return {"pytest_gpuleak"}.union(*({path.stem, *names_of(path)} for path in paths))


def missing(text: str) -> list[str]:
    """The code spans of a page that name a file, a module or a name of the package which is not there."""
    found = []
    for span in re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)):
        if "/" in span and not span.startswith("/proc"):
            known = any((place / name).exists() for place in (PACKAGE, ROOT) for name in (span, f"{span}.py"))
        elif re.fullmatch(r"[A-Z]\w*(\.\w+)?(\(\))?|\w+\(\)|_?[a-z]+_\w+", span):
            known = span.removesuffix("()") in names_of_package()
        else:
            continue
        if not known:
            found.append(span)
    return found


@pytest.mark.parametrize("page", ["architecture.md", "performance.md"])
def test_a_page_names_what_is_there(page: str) -> None:
    text = (PAGES / page).read_text(encoding="utf-8")
    assert missing(text) == []
    assert len(text.splitlines()) <= 130


def test_a_name_that_is_gone_is_found() -> None:
    assert missing(
        "`engine/monitor.py`, `Monitor`, `RunTracker.born()` and `engine/suspect.py`, `SuspectCheck`, `_keep_modules`"
    ) == [
        "engine/monitor.py",
        "Monitor",
        "RunTracker.born()",
        "_keep_modules",
    ]

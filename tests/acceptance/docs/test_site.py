"""The site of docs/: its pages and links, the first five minutes as they are told, and the generated reference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([\w-]*))?\)")
OFF = ("benchmark", "pytest_cov", "flaky", "syrupy", "rerunfailures", "cacheprovider", "randomly")


def text_of(page: Path) -> str:
    """The text of a page without code, in which brackets mean something else."""
    return re.sub(r"`[^`\n]*`", "", BLOCK.sub("", page.read_text("utf-8")))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    heads = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


def files_of(nav: Any) -> list[str]:
    """The files of a navigation, whatever its depth."""
    if isinstance(nav, str):
        return [nav]
    return [name for part in (nav.values() if isinstance(nav, dict) else nav) for name in files_of(part)]


def test_each_page_is_in_the_navigation_once() -> None:
    listed = files_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(page for page in pages if not re.fullmatch(r"findings/GL\d+\.md", page))


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_lead_to_a_page_of_the_site_and_a_heading_of_it(page: Path) -> None:
    for file, anchor in LINK.findall(text_of(page)):
        target = (page.parent / file).resolve() if file else page
        assert target.is_relative_to(DOCS), f"{file} is not on the site"
        assert target.is_file(), file
        assert not anchor or anchor in anchors(target), f"{file}#{anchor}"


def test_the_reference_is_current() -> None:
    command = [sys.executable, "scripts/write_reference.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_first_five_minutes_are_as_they_are_told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    blocks = BLOCK.findall((DOCS / "index.md").read_text("utf-8"))
    (test,) = [code for language, code in blocks if language == "python"]
    (change,) = [code for language, code in blocks if language == "diff"]
    before, after = (line[1:] for line in change.splitlines())
    assert before in test
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    fixed = _run(pytester, test.replace(before, after))
    assert (fixed.ret, counts(fixed)) == (0, "0 leaked, 1 clean")
    leaks = _run(pytester, test)
    assert leaks.ret == 1
    output = " ".join(leaks.stdout.str().split())
    for shown in [code for language, code in blocks if language == "text"]:
        assert " ".join(shown.split()) in output


def _run(pytester: pytest.Pytester, test: str) -> pytest.RunResult:
    (pytester.path / "test_train.py").write_text(test, encoding="utf-8")
    plugins = [option for name in OFF for option in ("-p", f"no:{name}")]
    return pytester.runpytest_subprocess("--rootdir=.", *plugins, "--gpu-leak", "test_train.py")


def counts(done: pytest.RunResult) -> str:
    """Return how many tests leaked and were clean."""
    found = re.search(r"^gpu-leak: (\d+ leaked, \d+ clean)", done.stdout.str(), re.MULTILINE)
    assert found is not None, done.stdout.str()
    return found[1]

"""The cases of the leak corpus that need no more of torch than its arrays, with stand-ins for these: on Pythons without torch.

Where torch is installed, `scripts/check_corpus.py` runs every case with torch itself.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.standin_torch import OFFERED

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [
    pytest.mark.newest,
    pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="the cases are run with torch itself"),
]

CORPUS = os.environ.get("GPULEAK_CORPUS", "")
"""The folder of the corpus, as `.ci/run` and `scripts/test` name it; empty without one."""

UNOFFERED = {"backward", "numpy", "detach", "to", "reshape", "grad"}
"""Methods of tensors that the stand-in has not."""


def needs_no_torch(source: str) -> bool:
    """Tell whether the stand-in has what a file uses of torch."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            of_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
            if node.attr in UNOFFERED or (of_torch and node.attr not in OFFERED):
                return False
    return True


def sources(case: Path) -> dict[str, str]:
    """The files of a case, by their names: itself, and the application beside it."""
    files = [case, *sorted(case.with_name(f"{case.stem}_app").rglob("*.py"))]
    return {str(path.relative_to(case.parent)): path.read_text("utf-8") for path in files}


def cases() -> list[Any]:
    found = [path for path in sorted(Path(CORPUS, "cases").glob("*.py")) if CORPUS]
    chosen = [pytest.param(path, id=path.stem) for path in found if all(map(needs_no_torch, sources(path).values()))]
    why = "GPULEAK_CORPUS names no folder with a leak corpus"
    return chosen or [pytest.param(None, marks=pytest.mark.skip(reason=why), id="no corpus")]


@functools.cache
def runner() -> Any:
    """The corpus' own script, which reads and compares what a case expects."""
    spec = importlib.util.spec_from_file_location("gpuleak_corpus_run", Path(CORPUS, "run.py"))
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("case", cases())
def test_a_case_is_as_expected(case: Path, run: Runner, pytester: pytest.Pytester) -> None:
    expect = runner().expectation(case)
    for needed in expect["needs"]:
        pytest.importorskip(needed)
    for name, source in sources(case).items():
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source.replace("import torch\n", "from tests.support import standin_torch as torch\n"), "utf-8")
    found = run("", *expect["args"], case.name)
    if "heap not watched" in found.result.stdout.str() and any(
        "host" in str(want) for want in expect["tests"].values()
    ):
        pytest.skip("this interpreter's heap cannot be counted")
    tally = runner().Tally(case.stem)
    runner().compare(tally, expect, found.report, int(found.result.ret))
    assert tally.problems == []

"""Hints outside of pytest speak of no teardown, fixture or marker."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pytest_gpuleak.explain import hints
from pytest_gpuleak.explain.annotate import for_script

OF_TESTS = re.compile(r"teardown|tearDown|fixture|`yield`|the test\b|each test|mark the|allow_gpu_leak|addCleanup")
ABOUT_TESTS = {"pytest_objects.py"}
"""These recognise what pytest or a fixture keeps: outside of pytest there is none."""


def texts() -> list[tuple[str, str]]:
    """Every hint's text, as its function returns it or its pattern has it, with a name in the place of each value."""
    found = []
    for path in sorted(Path(hints.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            value = node.value if isinstance(node, ast.Return) else None
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Pattern":
                value = node.args[0]
            if isinstance(value, ast.JoinedStr | ast.Constant):
                text = ast.unparse(value)
                if path.name not in ABOUT_TESTS and len(text) > 60:
                    parts = value.values if isinstance(value, ast.JoinedStr) else [value]
                    found.append(
                        (path.name, "".join(str(one.value) if isinstance(one, ast.Constant) else "x" for one in parts))
                    )
    return found


@pytest.mark.parametrize(("file", "text"), texts())
def test_no_hint_speaks_of_tests(file: str, text: str) -> None:
    assert file
    assert OF_TESTS.search(for_script(text)) is None
    assert "  " not in for_script(text)


def test_there_are_hints_that_do() -> None:
    assert sum(OF_TESTS.search(text) is not None for _, text in texts()) > 15

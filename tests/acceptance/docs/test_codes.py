"""The table of codes is complete, its pages are current, and the examples on them leak and are mended as they say."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from pytest_gpuleak.explain.hints.order import ORDER
from pytest_gpuleak.model.codes.table import CODES, TOPICS, page
from pytest_gpuleak.model.findings import KIND_CODES, FindingKind

Examples = Callable[[set[str]], dict[str, list[dict[str, Any]]]]

ROOT = Path(__file__).resolve().parents[3]
KINDS = {code: kind for kind, code in KIND_CODES.items()}

OF_A_PROCESS = {"GL007", "GL106", "GL202", "GL509", "GL510"}
"""These change the process for the tests after them, so each has a process of its own.

GL202 does not: alone, the first uses of torch in a process grow the heap beside its gradient.
"""

NEED_CUDA = {"GL005"}
"""Memory that the CUDA runtime allocates for the test itself."""

OF_FRAMEWORKS = {
    code: found[0]
    for code in CODES
    if (found := re.findall(r"import (jax|tensorflow|mlx|numpy)\b", CODES[code].leaks)[-1:])
}
"""The framework that an example imports: it is skipped without it."""

SIMULATED = """
from tests.support import simgpu

simgpu.install()
"""


def test_each_pattern_and_each_kind_has_one_code() -> None:
    assert sorted([*ORDER, *KINDS]) == sorted(CODES)
    assert set(KIND_CODES) == set(get_args(FindingKind))
    assert len(KINDS) == len(KIND_CODES)
    assert sum(map(len, TOPICS.values())) == len(CODES)
    assert len({code.title for code in CODES.values()}) == len(CODES)


@pytest.mark.parametrize("code", CODES.values(), ids=list(CODES))
def test_a_code_has_a_full_page(code: Any) -> None:
    assert re.fullmatch(r"GL\d{3}", code.id)
    assert 10 < len(code.title) < 60
    assert not code.title.endswith(".")
    lines = page(code).splitlines()
    assert lines[0] == f"# {code.id} {code.title}"
    assert all(len(line) <= 80 or "https://" in line or line.startswith("    ") for line in lines)
    assert all(text.strip() for text in (code.pattern, code.leaks, code.why, code.fix, code.fixed, code.known_problems))


def test_the_libraries_named_are_those_of_the_page_on_real_leaks() -> None:
    text = (ROOT / "docs" / "real-leaks.md").read_text("utf-8")
    named = [sighting for code in CODES.values() for sighting in code.seen]
    assert named
    for sighting in named:
        rows = [line for line in text.splitlines() if line.startswith("| [") and f"]({sighting.url})" in line]
        assert any(f"| {sighting.release.partition(' (')[0]} |" in row for row in rows), sighting


@pytest.fixture
def run_examples(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Examples:
    """Runs the examples of these codes in a process of its own; the findings of each test file by its name."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    (pytester.path / "conftest.py").write_text(SIMULATED, encoding="utf-8")

    def run(codes: set[str]) -> dict[str, list[dict[str, Any]]]:
        for code in codes:
            for name, text in (("leaks", CODES[code].leaks), ("fixed", CODES[code].fixed)):
                on_device = text.replace('"cuda"', '"simgpu:0"')
                (pytester.path / f"test_{code}_{name}.py").write_text(on_device, encoding="utf-8")
        options = ["--rootdir=.", "-p", "no:cacheprovider", "--gpu-leak", "--gpu-leak-report=report.json"]
        output = pytester.runpytest_subprocess("-q", *options).stdout.str()
        found: dict[str, list[dict[str, Any]]] = {}
        for test in json.loads((pytester.path / "report.json").read_text("utf-8"))["tests"]:
            finding = found.setdefault(test["nodeid"].partition(".py")[0].removeprefix("test_"), [])
            assert test["verdict"] != "unchecked" or test["findings"], (test["nodeid"], output)
            finding += test["findings"]
        assert len(found) == 2 * len(codes), output
        return found

    return run


def _wrong(found: dict[str, list[dict[str, Any]]], codes: set[str]) -> dict[str, Any]:
    wrong: dict[str, Any] = {}
    for code in sorted(codes):
        kind = KINDS.get(code)
        told = [finding["kind"] if kind else finding["code"] for finding in found[f"{code}_leaks"]]
        if (kind or code) not in told:
            wrong[f"{code} leaks"] = [(one["kind"], one["code"], one["holder"]) for one in found[f"{code}_leaks"]]
        if any(finding["failed"] or finding["code"] == code for finding in found[f"{code}_fixed"]):
            wrong[f"{code} fixed"] = [(one["kind"], one["code"], one["holder"]) for one in found[f"{code}_fixed"]]
    return wrong


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_examples_leak_by_their_pattern_and_are_clean_once_fixed(run_examples: Examples) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    codes = set(CODES) - OF_A_PROCESS - NEED_CUDA - set(OF_FRAMEWORKS)
    assert _wrong(run_examples(codes), codes) == {}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("code", sorted(OF_A_PROCESS))
def test_an_example_with_a_process_of_its_own(code: str, run_examples: Examples) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert _wrong(run_examples({code}), {code}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("framework", sorted(set(OF_FRAMEWORKS.values())))
def test_examples_of_other_frameworks(framework: str, run_examples: Examples) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    codes = {code for code, needed in OF_FRAMEWORKS.items() if needed == framework}
    assert _wrong(run_examples(codes), codes) == {}

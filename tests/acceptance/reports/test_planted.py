"""Planted leaks, read cold at 80 columns: the text of each says a file and line to edit."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.reports.json.read import read_report
from pytest_gpuleak.reports.terminal.section import render_leaks
from tests.support.planted import PLANTED
from tests.support.planted_lines import PLANTED_LINES

if TYPE_CHECKING:
    from tests.conftest import Runner

MARK = re.compile(r"  # edit$", re.MULTILINE)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_each_planted_leak_says_a_line_to_edit(run: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    for name, source in (PLANTED | PLANTED_LINES).items():
        (pytester.path / f"test_{name}.py").write_text(MARK.sub("", source.lstrip("\n")), encoding="utf-8")
    run("", "-q", apart=True)
    report = read_report(pathlib.Path(pytester.path, "report.json"))
    unsaid = []
    for name, source in (PLANTED | PLANTED_LINES).items():
        lines = source.lstrip("\n").splitlines()
        places = [f"test_{name}.py:{number}" for number, line in enumerate(lines, 1) if MARK.search(line)]
        alone = dataclasses.replace(
            report,
            tests=tuple(test for test in report.tests if test.nodeid.startswith(f"test_{name}.py")),
            fixtures=tuple(one for one in report.fixtures if str(one.file).startswith(f"test_{name}.py")),
        )
        text = "\n".join(render_leaks(alone, verbosity=0, width=80)).partition("  created")[0]
        if not any(re.search(rf"{re.escape(place)}\b", text) for place in places) or "  fix " not in text:
            unsaid.append(f"{name}:\n{text}")
    assert not unsaid, "\n".join(unsaid)

"""The line on who initialised a device first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.finding_codec import encode
from pytest_gpuleak.model.first_init import Caller, FirstInit
from pytest_gpuleak.model.outcomes import FixturePlace
from pytest_gpuleak.reports.json.read import UnusableReport, read_report
from pytest_gpuleak.reports.terminal.devices import is_shown, render_first_init

if TYPE_CHECKING:
    from pathlib import Path

MODEL = FixturePlace("model", "session", "", "conftest.py", 8)
TEST = "tests/test_x.py::test_y"


def found(phase: Any, **fields: Any) -> FirstInit:
    return FirstInit("cuda", "torch.cuda", phase, "main", 7, **fields)


KERNELS: dict[str, Any] = {"file": "app/kernels.py", "line": 12, "importing": "app.kernels"}


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (
            found("collection", nodeid="tests/test_a.py", **KERNELS),
            "while tests/test_a.py was collected, at app/kernels.py:12 (import of app.kernels)",
        ),
        (
            found("collection", nodeid="test_a.py", file="test_a.py", line=3, importing="test_a",
                  caller=Caller("vllm/platforms.py", 40, "detect")),
            "while test_a.py was collected, at test_a.py:3, in detect (vllm/platforms.py:40)",
        ),
        (found("collection", file="conftest.py", line=4, hook="pytest_collection_modifyitems"),
         "while the tests were collected, in the hook pytest_collection_modifyitems, at conftest.py:4"),
        (found("import", nodeid="tests/conftest.py", file="tests/conftest.py", line=2, importing="tests.conftest"),
         "while tests/conftest.py was imported, at tests/conftest.py:2"),
        (found("start", file="conftest.py", line=4, hook="pytest_configure"),
         "before the tests were collected, in the hook pytest_configure, at conftest.py:4"),
        (found("collection")._replace(by=None), "while the tests were collected, not by torch.cuda"),
    ],
)  # fmt: skip
def test_before_the_tests(one: FirstInit, expected: str) -> None:
    assert render_first_init(one) == f"gpu-leak: cuda was first initialised {expected}; forked processes cannot use it"
    assert (is_shown(one, -1), is_shown(one, 0), is_shown(one, 1)) == (False, True, True)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (found("fixture", nodeid=TEST, fixture=MODEL, file="conftest.py", line=9),
         f"in the setup of fixture 'model' (conftest.py:8) of {TEST}, at conftest.py:9"),
        (found("fixture", nodeid=TEST, fixture=MODEL._replace(file=None, line=None)),
         f"in the setup of fixture 'model' of {TEST}"),
        (found("test", nodeid=TEST, file="tests/test_x.py", line=5), f"in {TEST}, at tests/test_x.py:5"),
        (found("test", nodeid=TEST, thread="loader"), f"in {TEST}, in the thread 'loader'"),
        (found("session")._replace(by=None), "after the tests were collected, not by torch.cuda"),
        (found("test", nodeid="test_x.py::test_y[\x1b[2J]"), r"in test_x.py::test_y[\x1b[2J]"),
    ],
)  # fmt: skip
def test_by_the_tests(one: FirstInit, expected: str) -> None:
    assert render_first_init(one) == f"gpu-leak: cuda was first initialised {expected}"
    assert (is_shown(one, -1), is_shown(one, 0), is_shown(one, 1)) == (False, False, True)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"phase": "later"}, "summary.first_init.phase"),
        ({"line": "12"}, "summary.first_init.line"),
        ({"fixture": 5}, "summary.first_init.fixture"),
        ({"caller": {"file": "a.py"}}, "summary.first_init.caller.line is missing"),
    ],
)
def test_a_report_with_a_wrong_value_is_refused(tmp_path: Path, fields: dict[str, Any], wrong: str) -> None:
    path = tmp_path / "report.json"
    document = {
        "schema": "pytest-gpuleak/report/1",
        "created": "2026-11-28T18:00:00+00:00",
        "tests": [],
        "fixtures": [],
    }
    first = encode(found("test", nodeid=TEST))
    path.write_text(json.dumps({**document, "summary": {"first_init": first}}))
    assert read_report(path).summary["first_init"] == first
    path.write_text(json.dumps({**document, "summary": {"first_init": {**first, **fields}}}))
    with pytest.raises(UnusableReport, match=wrong.replace(".", "[.]")):
        read_report(path)

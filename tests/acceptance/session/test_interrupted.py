"""Ctrl-C while the check is at work ends the run as pytest does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

INTERRUPTED = """
from pytest_gpuleak.session.leak_check import LeakCheck

def deep_in_the_check(*arguments):
    raise KeyboardInterrupt

LeakCheck.judge = deep_in_the_check
"""


@pytest.mark.parametrize("options", [[], ["--full-trace"]])
def test_no_frame_of_the_check_is_shown(run: Runner, pytester: pytest.Pytester, options: list[str]) -> None:
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + INTERRUPTED)
    found = run("def test_first(): pass\ndef test_second(): pass", *options, apart=True)
    assert found.result.ret == pytest.ExitCode.INTERRUPTED
    assert "!!! KeyboardInterrupt !!!" in found.result.stdout.str()
    assert "deep_in_the_check" not in found.result.stdout.str()
    assert "2 of 2 tests did not run to the end" in found.report["incomplete"]

"""Leaks stand in pytest's short test summary, beside its failures, where ``-r`` asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

SUITE = """
    import pytest

    KEPT = []

    @pytest.fixture(scope="module")
    def model():
        KEPT.append(Buffer(3 * 2**20))

    def test_small(model):
        KEPT.append(Buffer(100))

    def test_large():
        KEPT.append(Buffer(2**20))

    def test_clean():
        pass
"""

LEAKS = (
    "LEAKED fixture 'model' (module scope, test_it.py:*) - 3.0 MiB held by test_it.KEPT",
    "LEAKED test_it.py::test_large - 1.0 MiB held by test_it.KEPT",
    "LEAKED test_it.py::test_small - 100 bytes held by test_it.KEPT",
)


def lines_after_title(output: list[str]) -> list[str]:
    titles = [index for index, line in enumerate(output) if "short test summary info" in line]
    assert len(titles) <= 1
    return output[titles[0] + 1 :] if titles else []


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_leaks_alone_have_the_section_of_their_own(run: Runner) -> None:
    found = run(SUITE)
    after = lines_after_title(found.result.outlines)
    found.result.stdout.fnmatch_lines(["*short test summary info*", *LEAKS, "*3 passed, 2 leaked*"], consecutive=True)
    assert len(after) == len(LEAKS) + 1


def test_leaks_follow_the_failures(run: Runner) -> None:
    found = run(SUITE + "\n    def test_fails():\n        assert 0\n")
    lines_after_title(found.result.outlines)
    found.result.stdout.fnmatch_lines(["*short test summary info*", "FAILED *test_fails*", *LEAKS], consecutive=True)


@pytest.mark.parametrize("options", [("-rN",), ("-rs",), ("-q",), ("--no-summary",)], ids=str)
def test_where_failures_are_not_listed_leaks_are_not(run: Runner, options: tuple[str, ...]) -> None:
    found = run(SUITE, *options)
    assert found.verdicts["test_large"] == "leaked"
    found.result.stdout.no_fnmatch_line("LEAKED *held by test_it.KEPT")
    found.result.stdout.no_fnmatch_line("*short test summary info*")


def test_leaks_alone_may_be_asked_for(run: Runner) -> None:
    found = run(SUITE, "-rL")
    found.result.stdout.fnmatch_lines(["*short test summary info*", *LEAKS], consecutive=True)


def test_a_narrow_terminal_cuts_no_holder(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    suite = SUITE.replace("KEPT", "KEPT_" + "X" * 60)
    run(suite).result.stdout.fnmatch_lines([f"LEAKED test_it.py::test_large - 1.0 MiB held by test_it.KEPT_{'X' * 60}"])


def test_without_leaks_there_is_no_section(run: Runner) -> None:
    run("def test_clean(): pass").result.stdout.no_fnmatch_line("*short test summary info*")


RED, YELLOW, GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"


def test_the_last_line_and_the_progress_are_red_where_a_leak_fails_the_run(run: Runner) -> None:
    found = run(SUITE, "--color=yes", "-k", "large or clean")
    last = found.result.outlines[-1]
    assert last.startswith(RED)
    assert f"{RED}\x1b[1m1 leaked" in last
    assert f"{GREEN}2 passed" in last
    assert any(line.endswith(f"{RED}  [100%]\x1b[0m") or f"{RED}   " in line for line in found.result.outlines)


def test_the_last_line_is_red_where_a_fixture_alone_leaks(run: Runner) -> None:
    suite = SUITE.replace("KEPT.append(Buffer(100))", "pass")
    found = run(suite, "--color=yes", "-k", "small")
    assert found.result.ret == 1
    assert found.result.outlines[-1].startswith(RED)


def test_the_last_line_keeps_its_colour_where_nothing_fails(run: Runner) -> None:
    assert run(SUITE, "--color=yes", "-k", "clean").result.outlines[-1].startswith(GREEN)
    assert "\x1b[" not in run(SUITE, "--color=no", "-k", "large").result.stdout.str()


def test_the_last_line_is_red_under_xdist(run: Runner) -> None:
    pytest.importorskip("xdist")
    assert run(SUITE, "--color=yes", "-k", "large or clean", "-n1").result.outlines[-1].startswith(RED)

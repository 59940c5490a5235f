"""What was not done, and why, is in the JSON report and in `-v`: in a run, with the plugin's own words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

KEEPS = "KEPT = []\n\ndef test_it():\n    KEPT.append(Buffer(100))\n"


def judged_of(finding: dict[str, Any]) -> dict[str, Any]:
    judged = finding["judged"]
    assert isinstance(judged, dict)
    return judged


def test_a_leak_that_was_fully_explained_has_no_reasons(run: Runner) -> None:
    judged = judged_of(run(KEEPS).finding("test_it"))
    names = ("why_not_again", "cut", "why_no_holder", "why_no_line", "search_cut")
    assert {name: judged[name] for name in names} == dict.fromkeys(names, "")


def test_a_test_that_is_not_run_again(run: Runner) -> None:
    found = run(KEEPS, "--gpu-leak-confirm=0", "-v")
    judged = judged_of(found.finding("test_it"))
    assert judged["why_not_again"] == "no re-run was asked for"
    assert judged["why_no_line"] == "no re-run was asked for, and lines are recorded only in a re-run"
    found.result.stdout.fnmatch_lines(["*because  no re-run was asked for*", "*judged   4 not run again; 1 run*"])


@pytest.mark.parametrize(
    ("head", "options"), [("@pytest.mark.allow_gpu_leak(reason='on purpose')", ()), ("", ("--gpu-leak-tensors=5",))]
)
def test_what_does_not_fail_is_not_traced(run: Runner, head: str, options: tuple[str, ...]) -> None:
    source = f"import pytest\n\nKEPT = []\n\n{head}\ndef test_it():\n    KEPT.append(Buffer(100))\n"
    finding = run(source, *options).finding("test_it")
    assert finding["kind"] == "growing"
    assert judged_of(finding)["why_no_line"] == finding["why_line_unknown"] == "lines are recorded only for what fails"


def test_a_run_for_the_lines_that_does_not_pass(run: Runner) -> None:
    found = run("KEPT = []\n\ndef test_it():\n    KEPT.append(Buffer(100))\n    assert len(KEPT) < 3\n", "-v")
    finding = found.finding("test_it")
    assert (finding["kind"], finding["failed"]) == ("growing", True)
    judged = judged_of(finding)
    assert judged["why_no_line"].startswith("the run that records lines did not pass: ")
    assert judged["why_not_again"] == ""


def test_a_fixture(run: Runner) -> None:
    found = run(
        """
        import pytest

        KEPT = []

        @pytest.fixture(scope="module")
        def model():
            KEPT.append(Buffer(2**21))

        def test_it(model):
            pass
        """,
        "-v",
    )
    (finding,) = found.fixtures["model"]["findings"]
    judged = judged_of(finding)
    assert (judged["runs"], judged["why_not_again"]) == (1, "a fixture is not run again by itself")
    assert judged["why_no_line"].startswith("a fixture is not run again by itself, and lines are recorded")
    found.result.stdout.fnmatch_lines(
        ["*judged   1 run*", "*not      run again: a fixture is not run again by itself*"]
    )


def test_garbage_says_that_a_collection_decided(run: Runner) -> None:
    found = run("def test_it():\n    ring = Buffer(100)\n    ring.itself = ring\n", "-v")
    judged = judged_of(found.finding("test_it"))
    assert (judged["step"], judged["freed_by"]) == ("1 young", ["a collection"])


def test_memory_that_a_counter_alone_tells_of(run: Runner) -> None:
    found = run("KEPT = []\n\ndef test_it():\n    KEPT.append(b'x' * 2**24)\n", "-v", "--gpu-leak-confirm=0")
    finding = found.finding("test_it")
    judged = judged_of(finding)
    assert (finding["kind"], judged["why_not_again"]) == ("host", "no re-run was asked for")
    assert judged["why_no_holder"] == "a counter tells of it, and no object that holds it was found"
    found.result.stdout.fnmatch_lines(["*not      known who holds it: a counter tells of it*"])

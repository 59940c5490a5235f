"""What was not done, and why, is in the JSON report and in `-v`: in a run, with the plugin's own words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import Runner

SUITE = """
    import pytest

    EXPLAINED, NOT_AGAIN, ALLOWED, WITHIN, FAILS, OF_A_FIXTURE, BYTES = [], [], [], [], [], [], []

    def test_explained():
        EXPLAINED.append(Buffer(100))

    @pytest.mark.gpu_leak(confirm=0)
    def test_not_again():
        NOT_AGAIN.append(Buffer(100))

    @pytest.mark.allow_gpu_leak(reason="on purpose")
    def test_allowed():
        ALLOWED.append(Buffer(100))

    @pytest.mark.gpu_leak(tensors=5)
    def test_within_its_limit():
        WITHIN.append(Buffer(100))

    def test_fails_the_third_time():
        FAILS.append(Buffer(100))
        assert len(FAILS) < 3

    @pytest.fixture(scope="class")
    def model():
        OF_A_FIXTURE.append(Buffer(2**21))

    class TestUses:
        def test_it(self, model):
            pass

    def test_garbage():
        ring = Buffer(100)
        ring.itself = ring

    @pytest.mark.gpu_leak(confirm=0)
    def test_bytes():
        BYTES.append(b"x" * 2**24)
"""
NOT_AGAIN = "no re-run was asked for"
FIXTURE = "a fixture is not run again by itself"


def test_what_was_not_done_is_told_with_the_reason(run: Runner) -> None:
    found = run(SUITE, "-v")
    findings = {name: found.finding(name) for name, test in found.tests.items() if test["findings"]}
    (findings["model"],) = found.fixtures["model"]["findings"]
    judged = {name: finding["judged"] for name, finding in findings.items()}
    reasons = ("why_not_again", "cut", "why_no_holder", "why_no_line", "search_cut")
    assert {reason: judged["test_explained"][reason] for reason in reasons} == dict.fromkeys(reasons, "")

    assert judged["test_not_again"]["why_not_again"] == NOT_AGAIN
    assert judged["test_not_again"]["why_no_line"] == f"{NOT_AGAIN}, and lines are recorded only in a re-run"
    for name in ("test_allowed", "test_within_its_limit"):
        untraced = "lines are recorded only for what fails"
        assert judged[name]["why_no_line"] == findings[name]["why_line_unknown"] == untraced
        assert findings[name]["kind"] == "growing"

    fails = findings["test_fails_the_third_time"]
    assert (fails["kind"], fails["failed"], fails["judged"]["why_not_again"]) == ("growing", True, "")
    assert fails["judged"]["why_no_line"].startswith("the run that records lines did not pass: ")

    assert (judged["model"]["runs"], judged["model"]["why_not_again"]) == (1, FIXTURE)
    assert judged["model"]["why_no_line"].startswith(f"{FIXTURE}, and lines are recorded")

    assert (judged["test_garbage"]["step"], judged["test_garbage"]["freed_by"]) == ("1 young", ["a collection"])

    assert (findings["test_bytes"]["kind"], judged["test_bytes"]["why_not_again"]) == ("host", NOT_AGAIN)
    assert judged["test_bytes"]["why_no_holder"] == "a counter tells of it, and no object that holds it was found"
    found.result.stdout.fnmatch_lines_random(
        [
            f"*because  {NOT_AGAIN}*",
            "*judged   4 not run again; 1 run*",
            "*judged   1 run*",
            f"*not      run again: {FIXTURE}*",
            "*not      known who holds it: a counter tells of it*",
        ]
    )

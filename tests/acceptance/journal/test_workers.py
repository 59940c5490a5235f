"""The workers of pytest-xdist: whatever becomes of one, what the others have found arrives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

pytest.importorskip("xdist")
pytestmark = pytest.mark.slow

SUITE = """
    import pytest
    KEPT = []

    @pytest.mark.xdist_group("a")
    def test_leaks():
        KEPT.append(Buffer(100))

    @pytest.mark.parametrize("i", range(3))
    def test_clean(i):
        assert Buffer(5)
"""


def names(found: Run) -> list[str]:
    return sorted(test["nodeid"].split("::")[-1].partition("@")[0] for test in found.report["tests"])


# The other modes stand in tests/session, with what else is said of a whole run.
@pytest.mark.parametrize("options", [["-n4", "--maxprocesses=1", "--dist=loadgroup"], ["-n0"]])
def test_each_test_is_reported_once(run: Runner, options: list[str]) -> None:
    found = run(SUITE, *options, "-k", "not 2", apart=options != ["-n0"])
    assert names(found) == ["test_clean[0]", "test_clean[1]", "test_leaks"]
    summary = found.report["summary"]
    assert (summary["leaked"], summary["clean"], summary["deselected"]) == (1, 2, 1)
    assert (found.report["incomplete"], found.result.ret) == (None, 1)


DIES = """
    import json, os, pathlib, pytest
    KEPT = []

    @pytest.fixture(scope="class")
    def model():
        KEPT.append(Buffer(2**21))

    class TestFirst:
        def test_first(self, model):
            pass

    def test_second():
        pass

    def test_dies():
        os._exit(9)

    def test_reads():
        pathlib.Path("seen.json").write_bytes(pathlib.Path("report.json").read_bytes())
"""


def test_a_worker_that_dies_loses_only_what_it_had_not_sent(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(DIES, "-n1", apart=True)
    assert names(found) == ["test_dies", "test_first", "test_reads", "test_second"]
    dead = found.tests["test_dies"]
    assert (dead["verdict"], dead["outcome"], dead["worker"]) == ("unchecked", "failed", "gw0")
    assert dead["why_unchecked"] == "the worker gw0 died while running it"
    assert (found.tests["test_reads"]["worker"], found.tests["test_reads"]["verdict"]) == ("gw1", "clean")
    assert found.fixtures["model"]["worker"] == "gw0"
    assert found.report["incomplete"] is None
    seen = json.loads((pytester.path / "seen.json").read_bytes())
    assert [test["nodeid"].split("::")[-1] for test in seen["tests"]] == ["test_first", "test_second", "test_dies"]
    assert seen["fixtures"][0]["name"] == "model"


def test_without_another_worker_the_rest_is_missing(run: Runner) -> None:
    found = run(DIES, "-n1", "--max-worker-restart=0", apart=True)
    assert names(found) == ["test_dies", "test_first", "test_second"]
    assert (
        found.report["incomplete"]
        == "the worker gw0 died: Not properly terminated; 1 of 4 tests did not run to the end"
    )
    assert "THE REPORT IS INCOMPLETE: the worker gw0 died" in found.result.stdout.str()

"""A re-run ends after its setup where that frees all that a small suspect left: its call is of no use then."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.confirm.test_harness import COUNTED, runs

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.interpreter

SUITE = f"""{COUNTED}
    import pytest

    STORE, HISTORY = {{}}, []

    @pytest.fixture(autouse=True)
    def empty_store():
        STORE.clear()
        yield
        note("torn down")

    def test_small():
        note("small")
        STORE["loss"] = Buffer()

    def test_large():
        note("large")
        STORE["model"] = Buffer(2**21)

    def test_grows_beside():
        note("grows")
        STORE["loss"] = Buffer()
        HISTORY.append(Buffer())

    def test_ring():
        note("ring")
        STORE["ring"] = Buffer()
        STORE["ring"].me = STORE["ring"]
"""


def test_only_what_setup_frees_ends_early(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(SUITE, report=False)
    found.result.assert_outcomes(passed=4, errors=0)
    found.result.stdout.fnmatch_lines(["gpu-leak: 2 leaked, 2 noted*"])
    found.result.stdout.fnmatch_lines(["LEAKED test_it.py::test_large", "LEAKED test_it.py::test_grows_beside"])
    # The call of `test_small` is not run again; `test_large` fails by its size, so its holder is searched for.
    assert runs(pytester) == {"small": 1, "large": 2, "grows": 2, "ring": 2, "torn down": 8}


def test_a_reader_of_notes_gets_their_holders(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(SUITE, "-v", report=False)
    found.result.stdout.fnmatch_lines(["*?'loss'?: uint8*"])
    assert runs(pytester)["small"] == 2


def test_a_teardown_that_misses_the_call_says_nothing(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(
        f"""{COUNTED}
    import pytest

    STORE = {{}}

    @pytest.fixture
    def server():
        STORE.clear()
        requests = []
        yield requests
        note("torn down")
        assert requests, "no request came"

    def test_asks(server):
        note("asks")
        server.append("GET /")
        STORE["answer"] = Buffer()

    def test_next():
        assert RUNS == {{"asks": 1, "torn down": 2}}
    """,
        report=False,
    )
    found.result.assert_outcomes(passed=2)
    found.result.stdout.fnmatch_lines(["gpu-leak: 0 leaked, 1 noted, 1 clean*"])


SLOW_SUITE = f"""{COUNTED}
    import time

    import pytest

    STORE, HISTORY = {{}}, []

    @pytest.fixture(autouse=True)
    def empty_store():
        STORE.clear()

    def test_quick():
        STORE["loss"] = Buffer()

    def test_slow():
        note("slow")
        time.sleep(0.2)
        STORE["loss"] = Buffer()

    def test_slow_ring():
        note("ring")
        time.sleep(0.2)
        ring = Buffer()
        ring.me = ring
        STORE["ring"] = ring

    def test_slow_and_grows():
        note("grows")
        time.sleep(0.2)
        HISTORY.append(Buffer())
"""


@pytest.fixture
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspects are run again whatever time earlier ones have taken."""
    monkeypatch.setattr(importlib.import_module("pytest_gpuleak.engine.replaced_record"), "FREE_S", 1000.0)


@pytest.mark.usefixtures("enough_time")
def test_a_collection_waits_for_the_setup_where_the_last_setup_has_freed_all(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[int] = []
    steps = importlib.import_module("pytest_gpuleak.engine.settle.steps")
    original = steps.collect

    def noted(generation: int) -> int:
        collected.append(generation)
        freed: int = original(generation)
        return freed

    monkeypatch.setattr(steps, "collect", noted)
    found = run(SLOW_SUITE, "--deselect=test_it.py::test_slow_and_grows", report=False)
    found.result.stdout.fnmatch_lines(["gpu-leak: 0 leaked, 3 noted*"])
    assert runs(pytester) == {"slow": 1, "ring": 1}
    assert len(collected) == 1  # for the ring


@pytest.mark.usefixtures("enough_time")
def test_what_neither_setup_nor_collection_frees_is_run_again(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(SLOW_SUITE, report=False)
    found.result.stdout.fnmatch_lines(["gpu-leak: 1 leaked, 3 noted*", "LEAKED test_it.py::test_slow_and_grows*"])
    assert runs(pytester) == {"slow": 1, "ring": 1, "grows": 3}  # once more for its creating line

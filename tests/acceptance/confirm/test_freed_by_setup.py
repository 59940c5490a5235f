"""A re-run ends after its setup where that frees all that a small suspect left: its call is of no use then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.confirm.test_harness import COUNTED, runs

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.newest

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
    found = run(SUITE, "-v")  # notes that are read have no call run again either
    found.result.assert_outcomes(passed=4, errors=0)
    found.result.stdout.fnmatch_lines(["gpu-leak: 2 leaked, 2 noted*"])
    leaked = [name for name, verdict in found.verdicts.items() if verdict == "leaked"]
    assert leaked == ["test_large", "test_grows_beside"]
    # The call of `test_small` is not run again. What fails has its holder, and is run once more for its lines.
    assert runs(pytester) == {"small": 1, "large": 3, "grows": 3, "ring": 2, "torn down": 10}
    assert found.holder("test_large") == "test_it.STORE['model']"
    small = found.finding("test_small")  # the setup was its re-run, so that it is confirmed not to grow
    assert (small["kind"], small["failed"], small["why_unconfirmed"]) == ("retained", False, None)


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
